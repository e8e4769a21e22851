// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

import Foundation

/// A tokenized text, or a pair of texts: L tokens with the special ones, and where each comes from.
///
/// Places in the text are counted in Unicode scalars, as golden_tokens.jsonl has them.
public struct Encoding {
    /// Token ids, [L].
    public let ids: [Int]
    /// Segment ids, [L]: which text a token belongs to, as the model wants it.
    public let typeIds: [Int]
    /// The first Unicode scalar of each token in its text, [L]; 0 of special tokens.
    public let starts: [Int]
    /// The place behind the last one, [L]; 0 of special tokens.
    public let ends: [Int]
    /// Which text each token comes from, [L]: 0 the first, 1 the second, -1 for special tokens.
    public let parts: [Int]
    /// The number of the word that each token belongs to in its text, [L]; -1 for special tokens.
    public let words: [Int]
    /// Whether tokens were cut off; of windows whether there are others.
    public let truncated: Bool

    init(_ rows: [Row], truncated: Bool) {
        self.ids = rows.map { row in row.id }
        self.typeIds = rows.map { row in row.type }
        self.starts = rows.map { row in row.start }
        self.ends = rows.map { row in row.end }
        self.parts = rows.map { row in row.part }
        self.words = rows.map { row in row.word }
        self.truncated = truncated
    }
}

/// Turns text into token ids as the `tokenizers` library does with the same tokenizer.json: equal ids, segment ids and places.
///
/// Padding and truncation in the file are ignored; the caller says how long an input may be. Nothing changes once it is made.
public final class Tokenizer {
    private let parts: TokenizerParts
    private let tables: UnicodeTables
    private var idsOfAdded: [[UInt8]: Int] = [:]

    /// Reads a tokenizer.
    ///
    /// - Parameters:
    ///   - tokenizerJson: The file tokenizer.json of the artefact folder.
    ///   - unicode: The file unicode.bin that lies next to these sources.
    /// - Throws: `TokenizerError` if it is no tokenizer, or has what is not supported, which the message names.
    public init(tokenizerJson: Data, unicode: Data) throws {
        let known: UnicodeTables = try UnicodeTables(Texts.bytes(unicode))
        let content: JsonValue = try JsonParser.read(Texts.bytes(tokenizerJson))
        let reader: TokenizerReader = TokenizerReader(known)
        self.tables = known
        self.parts = try reader.read(content)
        for token in parts.added {
            idsOfAdded[token.content] = token.id
        }
    }

    /// The number of special tokens around a text, or around a pair of texts.
    public func specialTokens(pair: Bool) -> Int {
        return parts.frame.specialTokens(pair: pair)
    }

    /// The id of a token such as [MASK]; nil where the vocabulary has none of this name.
    public func id(of token: String) -> Int? {
        let name: [UInt8] = Texts.utf8(token)
        if let added = idsOfAdded[name] {
            return added
        }
        let found: Int = parts.model.vocabulary.id(name)
        return found < 0 ? nil : found
    }

    /// Tokenizes a text and cuts it where it has more tokens than `maxLength` with the special ones.
    ///
    /// - Parameter keepsEnd: Whether its beginning is cut off (truncation_side left), and not its end.
    public func encode(_ text: String, maxLength: Int, keepsEnd: Bool = false) throws -> Encoding {
        let all: [Row] = rows(text, part: 0)
        let count: Int = min(all.count, try room(maxLength, pair: false))
        let kept: [Row] = Tokenizer.cut(all, count, keepsEnd: keepsEnd)
        return Encoding(parts.frame.around(kept, nil, later: false), truncated: count < all.count)
    }

    /// Tokenizes a pair of texts and cuts the longer one first, both where both are too long.
    ///
    /// - Parameter keepsEnd: Whether their beginnings are cut off (truncation_side left), and not their ends.
    public func encode(_ first: String, second: String, maxLength: Int, keepsEnd: Bool = false) throws -> Encoding {
        let one: [Row] = rows(first, part: 0)
        let other: [Row] = rows(second, part: 1)
        let most: Int = try room(maxLength, pair: true)
        if one.count + other.count <= most {
            return Encoding(parts.frame.around(one, other, later: false), truncated: false)
        }
        let swapped: Bool = one.count > other.count
        var shorter: Int = min(one.count, other.count)
        var longer: Int = shorter > most ? shorter : max(shorter, most - shorter)
        if shorter + longer > most {
            shorter = most / 2
            longer = shorter + most % 2
        }
        let countOne: Int = min(one.count, swapped ? longer : shorter)
        let countOther: Int = min(other.count, swapped ? shorter : longer)
        let keptOne: [Row] = Tokenizer.cut(one, countOne, keepsEnd: keepsEnd)
        let keptOther: [Row] = Tokenizer.cut(other, countOther, keepsEnd: keepsEnd)
        let framed: [Row] = parts.frame.around(keptOne, keptOther, later: false)
        return Encoding(framed, truncated: countOne < one.count || countOther < other.count)
    }

    private static func cut(_ rows: [Row], _ count: Int, keepsEnd: Bool) -> [Row] {
        let start: Int = keepsEnd ? rows.count - count : 0
        return Array(rows[start..<(start + count)])
    }

    /// Tokenizes a question with each of the overlapping windows that a long context is read in.
    ///
    /// - Parameters:
    ///   - maxLength: Most tokens of a window, special ones included.
    ///   - stride: Tokens that two neighbouring windows share; fewer where the room is smaller than that.
    public func windows(question: String, context: String, maxLength: Int, stride: Int) throws -> [Encoding] {
        let first: [Row] = rows(question, part: 0)
        let second: [Row] = rows(context, part: 1)
        let space: Int = maxLength - parts.frame.specialTokens(pair: true) - first.count
        if space < 1 {
            throw TokenizerError("The question has \(first.count) tokens: no room for the context in \(maxLength).")
        }
        var out: [Encoding] = []
        let step: Int = space - min(max(stride, 0), space - 1)
        var start: Int = 0
        while true {
            let end: Int = min(start + space, second.count)
            let window: [Row] = parts.frame.around(first, Array(second[start..<end]), later: start > 0)
            out.append(Encoding(window, truncated: second.count > space))
            if end == second.count {
                return out
            }
            start += step
        }
    }

    private func room(_ maxLength: Int, pair: Bool) throws -> Int {
        let special: Int = parts.frame.specialTokens(pair: pair)
        if maxLength <= special {
            throw TokenizerError("maxLength \(maxLength) leaves no room for text next to \(special) special tokens.")
        }
        return maxLength - special
    }

    private func rows(_ text: String, part: Int) -> [Row] {
        let pieces: Pieces = Pieces(Piece.whole(Texts.codePoints(text)))
        parts.plain.extract(pieces)
        for one in pieces.parts {
            if let piece = one.piece {
                parts.normalizer.normalize(piece)
            }
        }
        parts.normalized.extract(pieces)
        pieces.dropEmpty()
        parts.preTokenizer.split(pieces)
        var out: [Row] = []
        var word: Int = 0
        for one in pieces.parts {
            if let token = one.token {
                let row: Row = Row(
                    id: token.id, type: part, start: token.start, end: token.end, part: part, word: word,
                    leading: token.leading, trailing: token.trailing)
                out.append(row)
            }
            if let piece = one.piece {
                let tokens: Tokens = parts.model.tokenize(piece.codes)
                for index in 0..<tokens.ids.count {
                    out.append(row(piece, tokens, index, part: part, word: word))
                }
            }
            word += 1
        }
        return out
    }

    /// A token of the vocabulary. Where the frame cuts white space from places, that of its piece is counted.
    private func row(_ piece: Piece, _ tokens: Tokens, _ index: Int, part: Int, word: Int) -> Row {
        var leading: Int = 0
        var trailing: Int = 0
        let id: Int = tokens.ids[index]
        if parts.frame.trimming {
            let letters: [Int] = Texts.decode(parts.model.vocabulary.piece(id))
            while leading < letters.count && AddedTokens.isBlank(letters[leading], tables) {
                leading += 1
            }
            while trailing < letters.count && AddedTokens.isBlank(letters[letters.count - 1 - trailing], tables) {
                trailing += 1
            }
        }
        return Row(
            id: id, type: part, start: piece.starts[tokens.starts[index]], end: piece.ends[tokens.ends[index] - 1],
            part: part, word: word, leading: leading, trailing: trailing)
    }
}
