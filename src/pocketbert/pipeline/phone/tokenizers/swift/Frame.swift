// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// One token of a text while an encoding is put together.
final class Row {
    let id: Int
    let type: Int
    let start: Int
    let end: Int
    /// 0 of the first text, 1 of the second, -1 of special tokens.
    let part: Int
    let word: Int
    /// White space at the start of the token's text, and at its end.
    let leading: Int
    let trailing: Int

    init(id: Int, type: Int, start: Int, end: Int, part: Int, word: Int, leading: Int, trailing: Int) {
        self.id = id
        self.type = type
        self.start = start
        self.end = end
        self.part = part
        self.word = word
        self.leading = leading
        self.trailing = trailing
    }

    func with(type: Int) -> Row {
        return Row(
            id: id, type: type, start: start, end: end, part: part, word: word, leading: leading, trailing: trailing)
    }

    func with(start: Int, end: Int) -> Row {
        return Row(
            id: id, type: type, start: start, end: end, part: part, word: word, leading: leading, trailing: trailing)
    }
}

/// A text of the frame, or a special token.
final class Slot {
    /// Stands for the first text in `id`.
    static let first: Int = -1
    /// Stands for the second text.
    static let second: Int = -2

    let id: Int
    /// Its segment id; -1 where the text keeps its own.
    let type: Int

    init(_ id: Int, _ type: Int) {
        self.id = id
        self.type = type
    }
}

/// Puts special tokens around one text or two (the post-processor of tokenizer.json), and may cut white space from places.
final class Frame {
    private let single: [Slot]
    private let pair: [Slot]
    /// For each step that cuts white space: whether one blank at the start of the text is not in the text itself.
    private let trims: [Bool]
    private let keepsTypes: Bool

    /// Makes one; with `keepsTypes`, windows behind the first one keep the segment ids 0 and 1, as the library does it with a template.
    init(single: [Slot], pair: [Slot], trims: [Bool], keepsTypes: Bool) {
        self.single = single
        self.pair = pair
        self.trims = trims
        self.keepsTypes = keepsTypes
    }

    var trimming: Bool {
        return !trims.isEmpty
    }

    func specialTokens(pair ofPair: Bool) -> Int {
        var out: Int = 0
        let slots: [Slot] = ofPair ? pair : single
        for slot in slots {
            if slot.id >= 0 {
                out += 1
            }
        }
        return out
    }

    /// Puts the special tokens around a text or two; `later` in the windows behind the first one.
    func around(_ first: [Row], _ second: [Row]?, later: Bool) -> [Row] {
        let ownFirst: [Row] = trimmed(first)
        var ownSecond: [Row] = []
        var slots: [Slot] = single
        if let rows = second {
            ownSecond = trimmed(rows)
            slots = pair
        }
        var out: [Row] = []
        for slot in slots {
            if slot.id >= 0 {
                let special: Row = Row(
                    id: slot.id, type: slot.type, start: 0, end: 0, part: -1, word: -1, leading: 0, trailing: 0)
                out.append(special)
                continue
            }
            let kept: Bool = slot.type < 0 || (later && keepsTypes && slot.id == Slot.second)
            let rows: [Row] = slot.id == Slot.first ? ownFirst : ownSecond
            for row in rows {
                out.append(kept ? row : row.with(type: slot.type))
            }
        }
        return out
    }

    private func trimmed(_ rows: [Row]) -> [Row] {
        var out: [Row] = rows
        for prefixSpace in trims {
            var made: [Row] = []
            for row in out {
                made.append(Frame.cut(row, first: made.isEmpty, prefixSpace: prefixSpace))
            }
            out = made
        }
        return out
    }

    private static func cut(_ row: Row, first: Bool, prefixSpace: Bool) -> Row {
        var start: Int = row.start
        var end: Int = row.end
        if row.leading > 0 {
            let atStart: Bool = first || start == 0
            let removed: Int = atStart && prefixSpace && row.leading == 1 ? 0 : row.leading
            start = min(start + removed, end)
        }
        if row.trailing > 0 && end >= row.trailing {
            end = max(end - row.trailing, start)
        }
        return row.with(start: start, end: end)
    }
}
