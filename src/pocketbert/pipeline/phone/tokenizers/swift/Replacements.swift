// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// Removes control characters and makes blanks of others, as SentencePiece's rule "nmt".
final class NmtFilter: CharacterFilter {
    override func keeps(_ code: Int) -> Bool {
        if code >= 1 && code <= 8 {
            return false
        }
        if code >= 0x0E && code <= 0x1F {
            return false
        }
        return code != 0x0B && code != 0x7F && code != 0x8F && code != 0x9F
    }

    override func mapped(_ code: Int) -> Int {
        if code == 0x09 || code == 0x0A || code == 0x0C || code == 0x0D {
            return 0x20
        }
        if code >= 0x200B && code <= 0x200F {
            return 0x20
        }
        if code == 0x1680 || code == 0x2028 || code == 0x2029 {
            return 0x20
        }
        if code == 0x2581 || code == 0xFEFF || code == 0xFFFD {
            return 0x20
        }
        return code
    }
}

/// Puts characters before a text.
final class Prepend: Normalizer {
    private let text: [Int]

    init(_ text: [Int]) {
        self.text = text
    }

    func normalize(_ piece: Piece) {
        piece.prepend(text)
    }
}

/// Puts one text in the place of another.
final class ReplacedText: Normalizer {
    private let text: [Int]
    private let content: [Int]

    init(_ text: [Int], _ content: [Int]) {
        self.text = text
        self.content = content
    }

    func normalize(_ piece: Piece) {
        var matches: [Int] = []
        var at: Int = 0
        while at + text.count <= piece.count {
            if isThere(piece.codes, at) {
                matches.append(at)
                matches.append(at + text.count)
                at += text.count
            } else {
                at += 1
            }
        }
        piece.replace(matches, content)
    }

    private func isThere(_ codes: [Int], _ at: Int) -> Bool {
        for index in 0..<text.count {
            if codes[at + index] != text[index] {
                return false
            }
        }
        return true
    }
}

/// Puts a text in the place of runs of blanks, the only regular expressions that are read here.
final class ReplacedBlanks: Normalizer {
    static let patterns: [String] = [" {2,}", "\\s{2,}|[\\n\\r\\t]"]

    private let tables: UnicodeTables
    private let blanksOnly: Bool
    private let content: [Int]

    /// Makes one of the first pattern (`blanksOnly`), or of the second.
    init(_ tables: UnicodeTables, blanksOnly: Bool, _ content: [Int]) {
        self.tables = tables
        self.blanksOnly = blanksOnly
        self.content = content
    }

    func normalize(_ piece: Piece) {
        var matches: [Int] = []
        var at: Int = 0
        while at < piece.count {
            var end: Int = at
            while end < piece.count && isBlank(piece.codes[end]) {
                end += 1
            }
            let code: Int = piece.codes[at]
            let single: Bool = !blanksOnly && (code == 0x09 || code == 0x0A || code == 0x0D)
            if end - at >= 2 || single {
                matches.append(at)
                matches.append(max(end, at + 1))
            }
            at = max(end, at + 1)
        }
        piece.replace(matches, content)
    }

    private func isBlank(_ code: Int) -> Bool {
        return blanksOnly ? code == 0x20 : tables.patternSpace.contains(code)
    }
}

/// Decodes Base64.
enum Base64 {
    static func decode(_ text: [UInt8]) throws -> [UInt8] {
        var out: [UInt8] = []
        var bits: Int = 0
        var held: Int = 0
        for letter in text {
            if letter == 0x3D { // padding
                break
            }
            let value: Int = number(Int(letter))
            if value < 0 {
                throw TokenizerError("tokenizer.json: normalizer: 'precompiled_charsmap' is no Base64.")
            }
            bits = (bits * 64 + value) % 0x1000000
            held += 6
            if held >= 8 {
                held -= 8
                let byte: Int = bits >> held
                out.append(UInt8(byte % 256))
            }
        }
        return out
    }

    private static func number(_ letter: Int) -> Int {
        if letter >= 0x41 && letter <= 0x5A {
            return letter - 0x41
        }
        if letter >= 0x61 && letter <= 0x7A {
            return letter - 0x61 + 26
        }
        if letter >= 0x30 && letter <= 0x39 {
            return letter - 0x30 + 52
        }
        if letter == 0x2B {
            return 62
        }
        return letter == 0x2F ? 63 : -1
    }
}

/// Replaces characters by a table of SentencePiece: a double array over bytes that leads to texts, each ended by a zero byte.
final class Precompiled: Normalizer {
    private static let longest: Int = 6

    private let graphemes: Graphemes
    private let units: [Int]
    private let texts: [UInt8]

    init(_ tables: UnicodeTables, _ table: [UInt8]) throws {
        let size: Int = table.count < 4 ? 0 : Precompiled.integer(table, 0)
        if size % 4 != 0 || size == 0 || size > table.count - 4 {
            throw TokenizerError("tokenizer.json: normalizer: 'precompiled_charsmap' is broken.")
        }
        var numbers: [Int] = []
        for index in 0..<(size / 4) {
            numbers.append(Precompiled.integer(table, 4 + 4 * index))
        }
        self.graphemes = Graphemes(tables)
        self.units = numbers
        self.texts = Array(table[(4 + size)..<table.count])
    }

    func normalize(_ piece: Piece) {
        let made: Changes = Changes()
        var modified: Bool = false
        var start: Int = 0
        while start < piece.count {
            let end: Int = graphemes.next(piece.codes, start)
            let whole: Int = find(piece.codes, start, end)
            if whole >= 0 {
                replace(made, end - start, whole)
                modified = true
                start = end
                continue
            }
            while start < end { // one by one, also of a single character that was found above by itself
                let text: Int = find(piece.codes, start, start + 1)
                if text >= 0 {
                    replace(made, 1, text)
                    modified = true
                } else {
                    made.add(piece.codes[start], 0)
                }
                start += 1
            }
        }
        if modified {
            piece.transform(made, skipped: 0)
        }
    }

    private func replace(_ made: Changes, _ oldCount: Int, _ text: Int) {
        var end: Int = text
        while end < texts.count && texts[end] != 0 {
            end += 1
        }
        let before: Int = made.count
        for code in Texts.decode(Array(texts[text..<end])) {
            made.add(code, 0)
        }
        let more: Int = made.count - before - oldCount
        var index: Int = 0
        while index < more {
            made.changes[made.count - 1 - index] = 1
            index += 1
        }
        if more < 0 && made.count > 0 {
            made.changes[made.count - 1] += more
        }
    }

    /// Where the text of the shortest key starts that some characters start with; -1 where there is none.
    private func find(_ codes: [Int], _ start: Int, _ end: Int) -> Int {
        var bytes: [UInt8] = []
        for index in start..<end {
            bytes.append(contentsOf: Texts.encode(codes[index]))
            if bytes.count >= Precompiled.longest {
                return -1
            }
        }
        var node: Int = Precompiled.offset(units[0])
        for byte in bytes {
            let label: Int = Int(byte)
            node = node ^ label
            if label == 0 || node >= units.count {
                return -1
            }
            let unit: Int = units[node]
            if (unit & 0x800000FF) != label {
                return -1
            }
            node = node ^ Precompiled.offset(unit)
            if (unit & 256) != 0 {
                return node >= units.count ? -1 : min(units[node] & 0x7FFFFFFF, texts.count)
            }
        }
        return -1
    }

    private static func offset(_ unit: Int) -> Int {
        let base: Int = unit >> 10
        let wide: Bool = (unit & 512) != 0
        return wide ? base * 256 : base
    }

    private static func integer(_ raw: [UInt8], _ at: Int) -> Int {
        var out: Int = 0
        for index in 0..<4 {
            let byte: Int = Int(raw[at + 3 - index])
            out = out * 256 + byte
        }
        return out
    }
}
