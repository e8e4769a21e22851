// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// Holds a set of Unicode code points.
final class CodePointSet {
    private static let plane: Int = 0x10000

    private let firsts: [Int]
    private let lasts: [Int]
    private let low: [Bool]

    /// Makes a set of runs in ascending order.
    init(firsts: [Int], lasts: [Int]) {
        var bits: [Bool] = [Bool](repeating: false, count: CodePointSet.plane)
        for run in 0..<firsts.count {
            if firsts[run] < CodePointSet.plane {
                for code in firsts[run]...min(lasts[run], CodePointSet.plane - 1) {
                    bits[code] = true
                }
            }
        }
        self.firsts = firsts
        self.lasts = lasts
        self.low = bits
    }

    func contains(_ code: Int) -> Bool {
        if code < CodePointSet.plane {
            return code >= 0 && low[code]
        }
        let run: Int = Search.last(firsts, atMost: code)
        return run >= 0 && code <= lasts[run]
    }
}

enum Search {
    /// Index of the last number that is not larger than a value, in ascending numbers; -1 where there is none.
    static func last(_ numbers: [Int], atMost value: Int) -> Int {
        var from: Int = 0
        var to: Int = numbers.count
        while from < to {
            let middle: Int = (from + to) / 2
            if numbers[middle] <= value {
                from = middle + 1
            } else {
                to = middle
            }
        }
        return from - 1
    }
}

/// Maps code points to small numbers, such as their general category; 0 where nothing is said.
final class CodePointNumbers {
    private let firsts: [Int]
    private let lasts: [Int]
    private let values: [Int]

    init(firsts: [Int], lasts: [Int], values: [Int]) {
        self.firsts = firsts
        self.lasts = lasts
        self.values = values
    }

    func value(_ code: Int) -> Int {
        let run: Int = Search.last(firsts, atMost: code)
        return run >= 0 && code <= lasts[run] ? values[run] : 0
    }

    /// The code points whose number is from one to another.
    func having(from: Int, to: Int) -> CodePointSet {
        var ownFirsts: [Int] = []
        var ownLasts: [Int] = []
        for run in 0..<firsts.count {
            if values[run] >= from && values[run] <= to {
                ownFirsts.append(firsts[run])
                ownLasts.append(lasts[run])
            }
        }
        return CodePointSet(firsts: ownFirsts, lasts: ownLasts)
    }
}

/// Maps code points to sequences of code points, such as their decomposition.
final class CodePointTexts {
    private let codes: [Int]
    private let texts: [[Int]]

    init(codes: [Int], texts: [[Int]]) {
        self.codes = codes
        self.texts = texts
    }

    var count: Int {
        return codes.count
    }

    func code(_ entry: Int) -> Int {
        return codes[entry]
    }

    func text(_ entry: Int) -> [Int] {
        return texts[entry]
    }

    /// The entry of a code point; -1 where it has none.
    func find(_ code: Int) -> Int {
        let entry: Int = Search.last(codes, atMost: code)
        return entry >= 0 && codes[entry] == code ? entry : -1
    }
}

/// What the `tokenizers` library knows of characters. The system's own tables are never asked: each release has another Unicode.
final class UnicodeTables {
    /// White space.
    let space: CodePointSet
    /// Numbers of the pre-tokenizer Digits.
    let numeric: CodePointSet
    /// Punctuation of the pre-tokenizers BertPreTokenizer and Punctuation.
    let punctuation: CodePointSet
    /// Letters, digits and the like that the pre-tokenizer Whitespace keeps together.
    let word: CodePointSet
    /// What BertNormalizer removes as control characters.
    let bertRemoved: CodePointSet
    /// Accents that BertNormalizer removes.
    let nonspacing: CodePointSet
    /// Accents that StripAccents removes.
    let combining: CodePointSet
    /// Letters, numbers and white space of the pattern of byte-level BPE.
    let letters: CodePointSet
    let numbers: CodePointSet
    let patternSpace: CodePointSet
    let lowercase: CodePointTexts
    let nfd: CodePointTexts
    let nfkd: CodePointTexts
    let combiningClass: CodePointNumbers
    /// Classes of grapheme clusters.
    let graphemes: CodePointNumbers
    let pairs: [Int: Int]

    /// Reads the file unicode.bin.
    init(_ raw: [UInt8]) throws {
        let reader: TableReader = TableReader(raw)
        try reader.readAll()
        space = try reader.setOf("rust_space")
        numeric = try reader.setOf("rust_numeric")
        punctuation = try reader.setOf("punctuation")
        word = try reader.setOf("word")
        bertRemoved = try reader.setOf("bert_removed")
        nonspacing = try reader.setOf("nonspacing")
        combining = try reader.setOf("combining")
        patternSpace = try reader.setOf("regex_space")
        // categories in the file's order: Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No
        let category: CodePointNumbers = try reader.numbers("category")
        letters = category.having(from: 1, to: 5)
        numbers = category.having(from: 9, to: 11)
        lowercase = try reader.texts("lowercase")
        nfd = try reader.texts("nfd")
        nfkd = try reader.texts("nfkd")
        combiningClass = try reader.numbers("combining_class")
        graphemes = try reader.numbers("graphemes")
        let composed: CodePointTexts = try reader.texts("composed")
        var made: [Int: Int] = [:]
        for entry in 0..<composed.count {
            let parts: [Int] = composed.text(entry)
            made[UnicodeTables.key(parts[0], parts[1])] = composed.code(entry)
        }
        pairs = made
    }

    static func key(_ first: Int, _ second: Int) -> Int {
        return (first << 32) | second
    }
}

/// Reads the tables: numbers of 7 bits a byte, written by scripts/unicode_tables.py of PocketBERT.
final class TableReader {
    private let raw: [UInt8]
    private var at: Int = 4
    private var sets: [String: CodePointNumbers] = [:]
    private var tables: [String: CodePointNumbers] = [:]
    private var textTables: [String: CodePointTexts] = [:]

    init(_ raw: [UInt8]) {
        self.raw = raw
    }

    func readAll() throws {
        let mark: [UInt8] = Texts.utf8("PBU1")
        if !raw.starts(with: mark) {
            throw TokenizerError("unicode.bin is not a file of tables: take the one next to these sources.")
        }
        let count: Int = try number()
        for _ in 0..<count {
            let length: Int = try number()
            let name: String = Texts.string(Array(raw[at..<(at + length)]))
            at += length
            let kind: Int = try number()
            if kind == 2 {
                textTables[name] = try readTexts()
            } else if kind == 1 {
                tables[name] = try readRuns(numbered: true)
            } else {
                sets[name] = try readRuns(numbered: false)
            }
        }
    }

    func setOf(_ name: String) throws -> CodePointSet {
        guard let found = sets[name] else {
            throw TokenizerError("unicode.bin has no table '\(name)': take the one next to these sources.")
        }
        return found.having(from: 1, to: 1)
    }

    func numbers(_ name: String) throws -> CodePointNumbers {
        guard let found = tables[name] else {
            throw TokenizerError("unicode.bin has no table '\(name)': take the one next to these sources.")
        }
        return found
    }

    func texts(_ name: String) throws -> CodePointTexts {
        guard let found = textTables[name] else {
            throw TokenizerError("unicode.bin has no table '\(name)': take the one next to these sources.")
        }
        return found
    }

    private func number() throws -> Int {
        var out: Int = 0
        var factor: Int = 1
        while at < raw.count && factor < 0x1000000000 {
            let next: Int = Int(raw[at])
            at += 1
            out += (next % 128) * factor
            if next < 128 {
                return out
            }
            factor = factor * 128
        }
        throw TokenizerError("unicode.bin ends in the middle: take the one next to these sources.")
    }

    private func readRuns(numbered: Bool) throws -> CodePointNumbers {
        let count: Int = try number()
        var firsts: [Int] = []
        var lasts: [Int] = []
        var values: [Int] = []
        var last: Int = 0
        for _ in 0..<count {
            let first: Int = last + (try number())
            last = first + (try number())
            firsts.append(first)
            lasts.append(last)
            let value: Int = try (numbered ? number() : 1)
            values.append(value)
        }
        return CodePointNumbers(firsts: firsts, lasts: lasts, values: values)
    }

    private func readTexts() throws -> CodePointTexts {
        let count: Int = try number()
        var codes: [Int] = []
        var all: [[Int]] = []
        var last: Int = 0
        for _ in 0..<count {
            last += try number()
            codes.append(last)
            let length: Int = try number()
            var text: [Int] = []
            for _ in 0..<length {
                let step: Int = try number()
                text.append(step % 2 == 0 ? last + step / 2 : last - step / 2)
            }
            all.append(text)
        }
        return CodePointTexts(codes: codes, texts: all)
    }
}
