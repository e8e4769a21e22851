// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// New characters of a text, each with what it takes the place of: 0 one old character, -n one and the n behind it, 1 none.
final class Changes {
    var codes: [Int] = []
    var changes: [Int] = []

    var count: Int {
        return codes.count
    }

    func add(_ code: Int, _ change: Int) {
        codes.append(code)
        changes.append(change)
    }
}

/// A stretch of text while it is normalized: its code points and, of each, the stretch of the original text that it comes from.
///
/// Every change keeps the stretches as the `tokenizers` library keeps them, its corner cases included.
final class Piece {
    private(set) var codes: [Int]
    private(set) var starts: [Int]
    private(set) var ends: [Int]
    /// The place in the original text where this piece starts.
    let origin: Int

    init(codes: [Int], starts: [Int], ends: [Int], origin: Int) {
        self.codes = codes
        self.starts = starts
        self.ends = ends
        self.origin = origin
    }

    /// Makes a piece of a whole text.
    static func whole(_ codes: [Int]) -> Piece {
        var starts: [Int] = []
        var ends: [Int] = []
        for index in 0..<codes.count {
            starts.append(index)
            ends.append(index + 1)
        }
        return Piece(codes: codes, starts: starts, ends: ends, origin: 0)
    }

    var count: Int {
        return codes.count
    }

    /// A part as a piece; `from` is smaller than `to`.
    func slice(from: Int, to: Int) -> Piece {
        return Piece(
            codes: Array(codes[from..<to]), starts: Array(starts[from..<to]), ends: Array(ends[from..<to]),
            origin: starts[from])
    }

    /// Replaces the text by other characters; `skipped` old ones are left out before the first new one.
    func transform(_ made: Changes, skipped: Int) {
        if codes.isEmpty {
            return
        }
        var first: Int = 0
        while first < codes.count && starts[first] == ends[first] {
            first += 1 // inserted before the text; the library does not replace them
        }
        if first == codes.count { // nothing of the original text is left: what is made comes behind, as the library does it
            splice(made, from: codes.count, to: codes.count, skipped: skipped)
        } else {
            splice(made, from: first, to: codes.count, skipped: skipped)
        }
    }

    /// Puts characters before the text; nothing where the text is empty.
    func prepend(_ text: [Int]) {
        if codes.isEmpty {
            return
        }
        let made: Changes = Changes()
        for code in text {
            made.add(code, made.count == 0 ? 0 : 1)
        }
        made.add(codes[0], 1)
        splice(made, from: 0, to: 1, skipped: 0)
    }

    /// Puts a text in the place of each match; its characters come from the last character of the match.
    ///
    /// `matches` are first and behind-last index of each, in order, not overlapping and not empty.
    func replace(_ matches: [Int], _ text: [Int]) {
        if matches.isEmpty {
            return
        }
        var newCodes: [Int] = []
        var newStarts: [Int] = []
        var newEnds: [Int] = []
        var read: Int = 0
        for index in 0..<(matches.count / 2) {
            let from: Int = matches[2 * index]
            let to: Int = matches[2 * index + 1]
            newCodes.append(contentsOf: codes[read..<from])
            newStarts.append(contentsOf: starts[read..<from])
            newEnds.append(contentsOf: ends[read..<from])
            for code in text {
                newCodes.append(code)
                newStarts.append(starts[to - 1])
                newEnds.append(ends[to - 1])
            }
            read = to
        }
        newCodes.append(contentsOf: codes[read..<codes.count])
        newStarts.append(contentsOf: starts[read..<starts.count])
        newEnds.append(contentsOf: ends[read..<ends.count])
        codes = newCodes
        starts = newStarts
        ends = newEnds
    }

    private func splice(_ made: Changes, from: Int, to: Int, skipped: Int) {
        var newCodes: [Int] = Array(codes[0..<from])
        var newStarts: [Int] = Array(starts[0..<from])
        var newEnds: [Int] = Array(ends[0..<from])
        var at: Int = min(from + skipped, to)
        for index in 0..<made.count {
            let change: Int = made.changes[index]
            let source: Int = min(change > 0 ? at - 1 : at, codes.count - 1)
            newCodes.append(made.codes[index])
            newStarts.append(source < 0 ? origin : starts[source])
            newEnds.append(source < 0 ? origin : ends[source])
            if change <= 0 {
                at = min(at + 1 - change, to)
            }
        }
        newCodes.append(contentsOf: codes[to..<codes.count])
        newStarts.append(contentsOf: starts[to..<starts.count])
        newEnds.append(contentsOf: ends[to..<ends.count])
        codes = newCodes
        starts = newStarts
        ends = newEnds
    }
}

/// A token that was found in the text as it is, with the white space at its ends, in code points.
final class Found {
    let id: Int
    let start: Int
    let end: Int
    let leading: Int
    let trailing: Int

    init(id: Int, start: Int, end: Int, leading: Int, trailing: Int) {
        self.id = id
        self.start = start
        self.end = end
        self.leading = leading
        self.trailing = trailing
    }
}

/// One part of a text: characters still to be cut or tokenized, or a token.
final class Part {
    let piece: Piece?
    let token: Found?

    init(piece: Piece?, token: Found?) {
        self.piece = piece
        self.token = token
    }

    static func of(_ piece: Piece) -> Part {
        return Part(piece: piece, token: nil)
    }

    var isEmpty: Bool {
        guard let text = piece else {
            return false
        }
        return text.count == 0
    }
}

/// A text in parts.
final class Pieces {
    private(set) var parts: [Part]

    init(_ whole: Piece) {
        self.parts = [Part.of(whole)]
    }

    /// Replaces every part that is no token by others; empty ones are left out.
    func split(_ cut: (Piece) -> [Part]) {
        var made: [Part] = []
        for part in parts {
            guard let piece = part.piece else {
                made.append(part)
                continue
            }
            for next in cut(piece) {
                if !next.isEmpty {
                    made.append(next)
                }
            }
        }
        parts = made
    }

    /// Leaves out the parts of which normalizing left nothing.
    func dropEmpty() {
        var made: [Part] = []
        for part in parts {
            if !part.isEmpty {
                made.append(part)
            }
        }
        parts = made
    }

    /// The parts of a piece between places: first and behind-last index of each.
    static func cut(_ piece: Piece, _ ranges: [Int]) -> [Part] {
        if ranges.count == 2 && ranges[0] == 0 && ranges[1] == piece.count {
            return [Part.of(piece)]
        }
        var out: [Part] = []
        for index in 0..<(ranges.count / 2) {
            let from: Int = ranges[2 * index]
            let to: Int = ranges[2 * index + 1]
            if to > from {
                out.append(Part.of(piece.slice(from: from, to: to)))
            }
        }
        return out
    }
}
