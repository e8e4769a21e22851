// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// A step that changes the characters of a text.
protocol Normalizer {
    func normalize(_ piece: Piece)
}

/// Runs several, one behind the other.
final class NormalizerSequence: Normalizer {
    private let steps: [Normalizer]

    init(_ steps: [Normalizer]) {
        self.steps = steps
    }

    func normalize(_ piece: Piece) {
        for step in steps {
            step.normalize(piece)
        }
    }
}

/// Keeps some characters and replaces these one by one.
class CharacterFilter: Normalizer {
    func keeps(_ code: Int) -> Bool {
        return true
    }

    func mapped(_ code: Int) -> Int {
        return code
    }

    func normalize(_ piece: Piece) {
        let length: Int = piece.count
        var index: Int = 0
        while index < length && keeps(piece.codes[index]) && mapped(piece.codes[index]) == piece.codes[index] {
            index += 1
        }
        if index == length {
            return // nothing to change, as in most texts
        }
        let made: Changes = Changes()
        var removedFirst: Int = 0
        for code in piece.codes {
            if keeps(code) {
                made.add(mapped(code), 0)
            } else if made.count == 0 {
                removedFirst += 1
            } else {
                made.changes[made.count - 1] -= 1
            }
        }
        piece.transform(made, skipped: removedFirst)
    }
}

/// Removes control characters, and makes blanks of all white space, as BERT does.
final class CleanText: CharacterFilter {
    private let tables: UnicodeTables

    init(_ tables: UnicodeTables) {
        self.tables = tables
    }

    override func keeps(_ code: Int) -> Bool {
        if code == 0 || code == 0xFFFD {
            return false
        }
        return code == 0x09 || code == 0x0A || code == 0x0D || !tables.bertRemoved.contains(code)
    }

    override func mapped(_ code: Int) -> Int {
        return tables.space.contains(code) ? 0x20 : code
    }
}

/// Removes the characters of a set, such as accents.
final class RemovedCharacters: CharacterFilter {
    private let removed: CodePointSet

    init(_ removed: CodePointSet) {
        self.removed = removed
    }

    override func keeps(_ code: Int) -> Bool {
        return !removed.contains(code)
    }
}

/// Writes all letters in lower case, each by itself: a sigma at the end of a word is like any other.
final class Lowercase: Normalizer {
    private let table: CodePointTexts

    init(_ tables: UnicodeTables) {
        self.table = tables.lowercase
    }

    func normalize(_ piece: Piece) {
        let made: Changes = Changes()
        var changed: Bool = false
        for code in piece.codes {
            if code >= 0x41 && code <= 0x5A {
                made.add(code + 32, 0)
                changed = true
                continue
            }
            let entry: Int = code < 0x80 ? -1 : table.find(code)
            if entry < 0 {
                made.add(code, 0)
                continue
            }
            changed = true
            var change: Int = 0
            for lower in table.text(entry) {
                made.add(lower, change)
                change = 1
            }
        }
        if changed {
            piece.transform(made, skipped: 0)
        }
    }
}

/// Removes white space from the ends.
final class Strip: Normalizer {
    private let space: CodePointSet
    private let left: Bool
    private let right: Bool

    init(_ space: CodePointSet, left: Bool, right: Bool) {
        self.space = space
        self.left = left
        self.right = right
    }

    func normalize(_ piece: Piece) {
        var first: Int = 0
        while left && first < piece.count && space.contains(piece.codes[first]) {
            first += 1
        }
        var end: Int = piece.count
        while right && end > 0 && space.contains(piece.codes[end - 1]) {
            end -= 1
        }
        if first == 0 && end == piece.count {
            return
        }
        let made: Changes = Changes()
        var index: Int = first
        while index < end {
            made.add(piece.codes[index], 0)
            index += 1
        }
        piece.transform(made, skipped: first)
    }
}

/// Prepares text as BERT does: no control characters, blanks around Chinese characters, no accents, lower case.
final class BertNormalizer: Normalizer {
    private let clean: CleanText?
    private let chinese: Bool
    private let forms: NormalizationForm?
    private let accents: RemovedCharacters?
    private let lower: Lowercase?

    init(_ tables: UnicodeTables, clean: Bool, chinese: Bool, accents: Bool, lower: Bool) {
        self.clean = clean ? CleanText(tables) : nil
        self.chinese = chinese
        self.forms = accents ? NormalizationForm(tables, compatible: false, composed: false) : nil
        self.accents = accents ? RemovedCharacters(tables.nonspacing) : nil
        self.lower = lower ? Lowercase(tables) : nil
    }

    func normalize(_ piece: Piece) {
        clean?.normalize(piece)
        if chinese {
            BertNormalizer.separateChinese(piece)
        }
        forms?.normalize(piece)
        accents?.normalize(piece)
        lower?.normalize(piece)
    }

    private static func separateChinese(_ piece: Piece) {
        let made: Changes = Changes()
        var any: Bool = false
        for code in piece.codes {
            if isChinese(code) {
                any = true
                made.add(0x20, 0)
                made.add(code, 1)
                made.add(0x20, 1)
            } else {
                made.add(code, 0)
            }
        }
        if any {
            piece.transform(made, skipped: 0)
        }
    }

    static func isChinese(_ code: Int) -> Bool {
        if code >= 0x4E00 && code <= 0x9FFF {
            return true
        }
        if code >= 0x3400 && code <= 0x4DBF {
            return true
        }
        if code >= 0xF900 && code <= 0xFAFF {
            return true
        }
        if code >= 0x20000 && code <= 0x2A6DF {
            return true
        }
        if code >= 0x2A700 && code <= 0x2B81F {
            return true
        }
        if code >= 0x2B920 && code <= 0x2CEAF {
            return true
        }
        return code >= 0x2F800 && code <= 0x2FA1F
    }
}

/// Brings text into one of Unicode's normalization forms: NFC, NFD, NFKC, NFKD.
final class NormalizationForm: Normalizer {
    private let composition: Composition
    private let compatible: Bool
    private let composed: Bool

    init(_ tables: UnicodeTables, compatible: Bool, composed: Bool) {
        self.composition = Composition(tables)
        self.compatible = compatible
        self.composed = composed
    }

    func normalize(_ piece: Piece) {
        var plain: Bool = true
        for code in piece.codes {
            plain = plain && code < 0xA0 // no form changes these
        }
        if plain {
            return
        }
        let made: Changes = decomposed(piece)
        piece.transform(composed ? joined(made) : made, skipped: 0)
    }

    private func decomposed(_ piece: Piece) -> Changes {
        let out: Changes = Changes()
        var pending: Int = 0
        for code in piece.codes {
            var change: Int = 0
            for part in composition.decompose(code, compatible: compatible) {
                if composition.combiningClass(part) == 0 {
                    order(out, from: pending)
                    pending = out.count + 1
                }
                out.add(part, change)
                change = 1
            }
        }
        order(out, from: pending)
        return out
    }

    /// Orders the marks behind a letter by their class; marks of one class stay as they are.
    private func order(_ out: Changes, from: Int) {
        if out.count - from < 2 {
            return
        }
        var keys: [Int] = []
        for index in from..<out.count {
            keys.append((composition.combiningClass(out.codes[index]) << 32) | index)
        }
        keys.sort()
        var codes: [Int] = []
        var changes: [Int] = []
        for key in keys {
            codes.append(out.codes[key & 0xFFFFFFFF])
            changes.append(out.changes[key & 0xFFFFFFFF])
        }
        for index in 0..<codes.count {
            out.codes[from + index] = codes[index]
            out.changes[from + index] = changes[index]
        }
    }

    /// Joins letters with the marks behind them where there is one character for both.
    private func joined(_ made: Changes) -> Changes {
        let out: Changes = Changes()
        var letter: Int = -1 // where it is in out
        var last: Int = -1 // class of the last mark that stayed behind the letter
        for index in 0..<made.count {
            let code: Int = made.codes[index]
            let own: Int = composition.combiningClass(code)
            var together: Int = -1
            if letter >= 0 && (last < 0 || last < own) {
                together = composition.compose(out.codes[letter], code)
            }
            if together >= 0 {
                out.codes[letter] = together
                out.changes[letter] += made.changes[index] - 1
                continue
            }
            if own == 0 {
                letter = out.count
                last = -1
            } else if letter >= 0 {
                last = own
            }
            out.add(code, made.changes[index])
        }
        return out
    }
}
