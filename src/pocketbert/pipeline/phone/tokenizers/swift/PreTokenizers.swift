// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// A step that cuts a text into words.
protocol PreTokenizer {
    func split(_ pieces: Pieces)
}

/// Runs several, one behind the other.
final class PreTokenizerSequence: PreTokenizer {
    private let steps: [PreTokenizer]

    init(_ steps: [PreTokenizer]) {
        self.steps = steps
    }

    func split(_ pieces: Pieces) {
        for step in steps {
            step.split(pieces)
        }
    }
}

/// What becomes of the characters at which a text is cut.
enum Delimiters {
    /// They are dropped.
    case removed
    /// Each is a piece.
    case isolated
    /// Neighbours are one piece.
    case contiguous
}

/// Cuts a text at the characters of a set.
final class CharacterSplitter: PreTokenizer {
    private let characters: CodePointSet
    private let delimiters: Delimiters

    init(_ characters: CodePointSet, _ delimiters: Delimiters) {
        self.characters = characters
        self.delimiters = delimiters
    }

    func split(_ pieces: Pieces) {
        pieces.split(cut)
    }

    private func cut(_ piece: Piece) -> [Part] {
        var ranges: [Int] = []
        var open: Int = -1 // where a run of other characters starts
        var previous: Bool = false
        for index in 0..<piece.count {
            let delimiter: Bool = characters.contains(piece.codes[index])
            if !delimiter {
                if open < 0 {
                    open = index
                }
            } else {
                if open >= 0 {
                    ranges.append(open)
                    ranges.append(index)
                    open = -1
                }
                if delimiters == Delimiters.contiguous && previous {
                    ranges[ranges.count - 1] = index + 1
                } else if delimiters != Delimiters.removed {
                    ranges.append(index)
                    ranges.append(index + 1)
                }
            }
            previous = delimiter
        }
        if open >= 0 {
            ranges.append(open)
            ranges.append(piece.count)
        }
        return Pieces.cut(piece, ranges)
    }
}

/// Keeps runs of letters and digits, and runs of other characters, without white space.
final class WordSplitter: PreTokenizer {
    private let tables: UnicodeTables

    init(_ tables: UnicodeTables) {
        self.tables = tables
    }

    func split(_ pieces: Pieces) {
        pieces.split(cut)
    }

    private func cut(_ piece: Piece) -> [Part] {
        var ranges: [Int] = []
        var last: Int = 0
        for index in 0..<piece.count {
            let code: Int = piece.codes[index]
            var kind: Int = 2
            if tables.word.contains(code) {
                kind = 1
            } else if tables.space.contains(code) {
                kind = 0
            }
            if kind != 0 && kind == last {
                ranges[ranges.count - 1] = index + 1
            } else if kind != 0 {
                ranges.append(index)
                ranges.append(index + 1)
            }
            last = kind
        }
        return Pieces.cut(piece, ranges)
    }
}

/// Cuts as byte-level BPE does: words with the blank before them, spelt in letters for bytes.
final class ByteLevel: PreTokenizer {
    private let pattern: WordPattern?
    private let prefixSpace: Bool

    init(_ tables: UnicodeTables, prefixSpace: Bool, useRegex: Bool) {
        self.pattern = useRegex ? WordPattern(tables) : nil
        self.prefixSpace = prefixSpace
    }

    func split(_ pieces: Pieces) {
        pieces.split(cut)
        for part in pieces.parts {
            if let piece = part.piece {
                ByteLetters.spell(piece)
            }
        }
    }

    private func cut(_ piece: Piece) -> [Part] {
        if prefixSpace && piece.count > 0 && piece.codes[0] != 0x20 {
            piece.prepend([0x20])
        }
        guard let words = pattern else {
            return [Part.of(piece)]
        }
        return Pieces.cut(piece, words.ranges(piece.codes))
    }
}

/// Spells each byte of UTF-8 as one visible character, as byte-level BPE vocabularies do: a blank is U+0120.
enum ByteLetters {
    /// What a blank is spelt as.
    static let blank: Int = 0x120

    private static let table: [Int] = ByteLetters.letters()

    static func spell(_ piece: Piece) {
        let made: Changes = Changes()
        for code in piece.codes {
            var change: Int = 0
            for byte in Texts.encode(code) {
                made.add(ByteLetters.table[Int(byte)], change)
                change = 1
            }
        }
        piece.transform(made, skipped: 0)
    }

    private static func letters() -> [Int] {
        var out: [Int] = []
        var next: Int = 256
        for byte in 0..<256 {
            let visible: Bool = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE
            if visible {
                out.append(byte)
            } else {
                out.append(next)
                next += 1
            }
        }
        return out
    }
}

/// Spells bytes as letters, as a normalizer.
final class ByteLevelNormalizer: Normalizer {
    func normalize(_ piece: Piece) {
        ByteLetters.spell(piece)
    }
}

/// Finds the words of byte-level BPE: contractions of English, letters, numbers and other characters, each with a blank before them.
///
/// It is the pattern 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ written out.
final class WordPattern {
    private static let letter: Int = 1
    private static let number: Int = 2
    private static let space: Int = 3
    private static let other: Int = 4

    private let tables: UnicodeTables

    init(_ tables: UnicodeTables) {
        self.tables = tables
    }

    /// First and behind-last index of each word; they cover all characters.
    func ranges(_ codes: [Int]) -> [Int] {
        var out: [Int] = []
        var at: Int = 0
        while at < codes.count {
            let end: Int = wordEnd(codes, at)
            out.append(at)
            out.append(end)
            at = end
        }
        return out
    }

    private func kind(_ code: Int) -> Int {
        if tables.letters.contains(code) {
            return WordPattern.letter
        }
        if tables.numbers.contains(code) {
            return WordPattern.number
        }
        return tables.patternSpace.contains(code) ? WordPattern.space : WordPattern.other
    }

    private func wordEnd(_ codes: [Int], _ start: Int) -> Int {
        let contracted: Int = contractionEnd(codes, start)
        if contracted > 0 {
            return contracted
        }
        let blank: Bool = codes[start] == 0x20 && start + 1 < codes.count
        let first: Int = blank && kind(codes[start + 1]) != WordPattern.space ? start + 1 : start
        let run: Int = kind(codes[first])
        var end: Int = first + 1
        while end < codes.count && kind(codes[end]) == run {
            end += 1
        }
        if run == WordPattern.space && end < codes.count && end - start > 1 {
            return end - 1 // the last one belongs to the word behind it
        }
        return end
    }

    private func contractionEnd(_ codes: [Int], _ start: Int) -> Int {
        if codes[start] != 0x27 || start + 1 >= codes.count {
            return 0
        }
        let first: Int = codes[start + 1]
        if first == 0x73 || first == 0x74 || first == 0x6D || first == 0x64 { // s t m d
            return start + 2
        }
        if start + 2 >= codes.count {
            return 0
        }
        let second: Int = codes[start + 2]
        let re: Bool = first == 0x72 && second == 0x65
        let ve: Bool = first == 0x76 && second == 0x65
        let ll: Bool = first == 0x6C && second == 0x6C
        return re || ve || ll ? start + 3 : 0
    }
}

/// Cuts as SentencePiece does: blanks become a sign, and a word starts with it.
final class Metaspace: PreTokenizer {
    private let sign: Int
    private let always: Bool
    private let first: Bool
    private let cutting: Bool

    /// Makes one that puts the sign before each text that does not start with it (`always`), or the start of the whole text (`first`).
    init(sign: Int, always: Bool, first: Bool, cutting: Bool) {
        self.sign = sign
        self.always = always
        self.first = first
        self.cutting = cutting
    }

    func split(_ pieces: Pieces) {
        pieces.split(cut)
    }

    private func cut(_ piece: Piece) -> [Part] {
        var blanks: [Int] = []
        for index in 0..<piece.count {
            if piece.codes[index] == 0x20 {
                blanks.append(index)
                blanks.append(index + 1)
            }
        }
        piece.replace(blanks, [sign])
        let there: Bool = piece.count > 0 && piece.codes[0] == sign
        if !there && (always || (first && piece.origin == 0)) {
            piece.prepend([sign])
        }
        if !cutting {
            return [Part.of(piece)]
        }
        return Pieces.cut(piece, ranges(piece.codes))
    }

    /// Each sign is the start of the word behind it; of neighbouring signs all but the last are words.
    private func ranges(_ codes: [Int]) -> [Int] {
        var out: [Int] = []
        for index in 0..<codes.count {
            let starting: Bool = codes[index] == sign
            if starting || out.isEmpty {
                out.append(index)
                out.append(index + 1)
            } else {
                out[out.count - 1] = index + 1
            }
        }
        return out
    }
}
