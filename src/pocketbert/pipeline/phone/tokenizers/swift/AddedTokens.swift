// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// An added token as tokenizer.json describes it.
final class AddedToken {
    let id: Int
    let content: [UInt8]
    let singleWord: Bool
    let lstrip: Bool
    let rstrip: Bool
    let normalized: Bool

    init(id: Int, content: [UInt8], singleWord: Bool, lstrip: Bool, rstrip: Bool, normalized: Bool) {
        self.id = id
        self.content = content
        self.singleWord = singleWord
        self.lstrip = lstrip
        self.rstrip = rstrip
        self.normalized = normalized
    }
}

/// Finds tokens in a text as they are, the longest one from the leftmost place on: special tokens and others that were added.
final class AddedTokens {
    private let tables: UnicodeTables
    private var children: [[Int]: Int] = [:] // of node and character
    private var tokens: [AddedToken?] = [nil] // the one that ends at a node

    /// Makes one of tokens and the code points that are looked for.
    init(_ tables: UnicodeTables, _ added: [AddedToken], _ texts: [[Int]]) throws {
        self.tables = tables
        for index in 0..<added.count {
            var node: Int = 0
            for code in texts[index] {
                if let known = children[[node, code]] {
                    node = known
                } else {
                    children[[node, code]] = tokens.count
                    node = tokens.count
                    tokens.append(nil)
                }
            }
            if node == 0 {
                continue // nothing of it is left once it is normalized, so that it is never found
            }
            if tokens[node] != nil { // the library finds either of them, a different one each time
                let name: String = Texts.string(added[index].content)
                throw TokenizerError("tokenizer.json: added_tokens: '\(name)' is, once normalized, the same as another one.")
            }
            tokens[node] = added[index]
        }
    }

    /// Cuts the added tokens out of the parts of a text.
    func extract(_ pieces: Pieces) {
        if !children.isEmpty {
            pieces.split(cut)
        }
    }

    private func cut(_ piece: Piece) -> [Part] {
        var out: [Part] = []
        var last: Int = 0
        var at: Int = 0
        while at < piece.count {
            let length: Int = longest(piece, at)
            if length == 0 {
                at += 1
                continue
            }
            var start: Int = at
            var stop: Int = at + length
            at = stop
            guard let token = tokenAt(piece, start, stop) else {
                continue
            }
            if token.singleWord && (isWord(piece, start - 1) || isWord(piece, stop)) {
                continue
            }
            if token.lstrip {
                while start > 0 && tables.space.contains(piece.codes[start - 1]) {
                    start -= 1
                }
                start = max(start, last)
            }
            if token.rstrip {
                while stop < piece.count && tables.space.contains(piece.codes[stop]) {
                    stop += 1
                }
            }
            if last < start {
                out.append(Part.of(piece.slice(from: last, to: start)))
            }
            out.append(Part(piece: nil, token: found(piece, start, stop, token.id)))
            last = stop
        }
        if last == 0 {
            return [Part.of(piece)]
        }
        if last != piece.count {
            out.append(Part.of(piece.slice(from: last, to: piece.count)))
        }
        return out
    }

    private func found(_ piece: Piece, _ from: Int, _ to: Int, _ id: Int) -> Found {
        var leading: Int = 0
        while from + leading < to && AddedTokens.isBlank(piece.codes[from + leading], tables) {
            leading += 1
        }
        var trailing: Int = 0
        while trailing < to - from && AddedTokens.isBlank(piece.codes[to - 1 - trailing], tables) {
            trailing += 1
        }
        return Found(id: id, start: piece.starts[from], end: piece.ends[to - 1], leading: leading, trailing: trailing)
    }

    /// Whether a character is white space, or the letter that byte-level BPE writes for a blank.
    static func isBlank(_ code: Int, _ tables: UnicodeTables) -> Bool {
        return code == ByteLetters.blank || tables.space.contains(code)
    }

    private func longest(_ piece: Piece, _ from: Int) -> Int {
        var best: Int = 0
        var node: Int = 0
        var at: Int = from
        while at < piece.count {
            guard let next = children[[node, piece.codes[at]]] else {
                break
            }
            node = next
            at += 1
            if tokens[node] != nil {
                best = at - from
            }
        }
        return best
    }

    private func tokenAt(_ piece: Piece, _ from: Int, _ to: Int) -> AddedToken? {
        var node: Int = 0
        for index in from..<to {
            guard let next = children[[node, piece.codes[index]]] else {
                return nil
            }
            node = next
        }
        return tokens[node]
    }

    private func isWord(_ piece: Piece, _ at: Int) -> Bool {
        return at >= 0 && at < piece.count && tables.word.contains(piece.codes[at])
    }
}
