// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// Reads tokenizer.json. What is not known is refused by name: nothing of a tokenizer is left out silently.
final class TokenizerReader {
    static let normalizers: [String] = [
        "BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend", "Replace",
        "Sequence", "Strip", "StripAccents",
    ]
    static let preTokenizers: [String] = [
        "BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "Punctuation", "Sequence", "Whitespace", "WhitespaceSplit",
    ]
    static let models: [String] = ["BPE", "Unigram", "WordPiece"]

    private let tables: UnicodeTables

    init(_ tables: UnicodeTables) {
        self.tables = tables
    }

    func read(_ content: JsonValue) throws -> TokenizerParts {
        let fields: Fields = try Fields(content, location: "tokenizer.json")
        let version: String = Texts.string(try fields.text("version", otherwise: "1.0"))
        if version != "1.0" {
            throw fields.refused("version '\(version)' is not supported; supported is 1.0.")
        }
        // the app cuts and pads by itself; the decoder makes text of ids
        for name in ["truncation", "padding", "decoder"] {
            _ = fields.take(name)
        }
        let model: Model = try readModel(try fields.object("model"))
        let normalizer: Normalizer = try readNormalizer(fields.take("normalizer"), "tokenizer.json: normalizer")
        let preTokenizer: PreTokenizer = try readPreTokenizer(
            fields.take("pre_tokenizer"), "tokenizer.json: pre_tokenizer")
        let frame: Frame = try FrameReader.read(fields.take("post_processor"), "tokenizer.json: post_processor")
        if frame.trimming && model.scored {
            throw fields.refused("post_processor: 'trim_offsets' with a model of type Unigram is not supported.")
        }
        let added: [AddedToken] = try readAdded(fields.take("added_tokens"), model.vocabulary)
        try fields.done()
        var plain: [AddedToken] = []
        var plainTexts: [[Int]] = []
        var normalized: [AddedToken] = []
        var normalizedTexts: [[Int]] = []
        for token in added {
            let codes: [Int] = Texts.decode(token.content)
            if token.normalized {
                let piece: Piece = Piece.whole(codes)
                normalizer.normalize(piece)
                normalized.append(token)
                normalizedTexts.append(piece.codes)
            } else {
                plain.append(token)
                plainTexts.append(codes)
            }
        }
        return TokenizerParts(
            plain: try AddedTokens(tables, plain, plainTexts),
            normalized: try AddedTokens(tables, normalized, normalizedTexts),
            added: added, normalizer: normalizer, preTokenizer: preTokenizer, model: model, frame: frame)
    }

    private func supported(_ names: [String]) -> String {
        return names.joined(separator: ", ")
    }

    private func readNormalizer(_ value: JsonValue?, _ location: String) throws -> Normalizer {
        guard let step = value else {
            return NormalizerSequence([])
        }
        let fields: Fields = try Fields(step, location: location)
        let type: String = Texts.string(try fields.text("type"))
        var out: Normalizer = NormalizerSequence([])
        switch type {
        case "Sequence":
            var steps: [Normalizer] = []
            for inner in try fields.list("normalizers") {
                steps.append(try readNormalizer(inner, location))
            }
            out = NormalizerSequence(steps)
        case "BertNormalizer":
            let lower: Bool = try fields.flag("lowercase")
            out = BertNormalizer(
                tables, clean: try fields.flag("clean_text"), chinese: try fields.flag("handle_chinese_chars"),
                accents: try fields.flag("strip_accents", otherwise: lower), lower: lower)
        case "NFC":
            out = NormalizationForm(tables, compatible: false, composed: true)
        case "NFD":
            out = NormalizationForm(tables, compatible: false, composed: false)
        case "NFKC":
            out = NormalizationForm(tables, compatible: true, composed: true)
        case "NFKD":
            out = NormalizationForm(tables, compatible: true, composed: false)
        case "Lowercase":
            out = Lowercase(tables)
        case "StripAccents":
            out = RemovedCharacters(tables.combining)
        case "ByteLevel":
            out = ByteLevelNormalizer()
        case "Nmt":
            out = NmtFilter()
        case "Prepend":
            out = Prepend(Texts.decode(try fields.text("prepend")))
        case "Replace":
            out = try readReplace(fields)
        case "Precompiled":
            out = try Precompiled(tables, Base64.decode(try fields.text("precompiled_charsmap")))
        case "Strip":
            out = Strip(tables.space, left: try fields.flag("strip_left"), right: try fields.flag("strip_right"))
        default:
            let known: String = supported(TokenizerReader.normalizers)
            throw fields.refused("the normalizer '\(type)' is not supported; supported are \(known).")
        }
        try fields.done()
        return out
    }

    private func readReplace(_ fields: Fields) throws -> Normalizer {
        let pattern: Fields = try fields.object("pattern")
        let content: [Int] = Texts.decode(try fields.text("content"))
        if let literal = pattern.take("String") {
            let text: [Int] = Texts.decode(literal.bytes)
            if text.isEmpty {
                throw fields.refused("an empty pattern is not supported.")
            }
            return ReplacedText(text, content)
        }
        let regex: String = Texts.string(try pattern.text("Regex"))
        if !ReplacedBlanks.patterns.contains(regex) {
            throw fields.refused("the regular expression '\(regex)' is not supported.")
        }
        return ReplacedBlanks(tables, blanksOnly: regex == ReplacedBlanks.patterns[0], content)
    }

    private func readPreTokenizer(_ value: JsonValue?, _ location: String) throws -> PreTokenizer {
        guard let step = value else {
            return PreTokenizerSequence([])
        }
        let fields: Fields = try Fields(step, location: location)
        let type: String = Texts.string(try fields.text("type"))
        var out: PreTokenizer = PreTokenizerSequence([])
        switch type {
        case "Sequence":
            var steps: [PreTokenizer] = []
            for inner in try fields.list("pretokenizers") {
                steps.append(try readPreTokenizer(inner, location))
            }
            out = PreTokenizerSequence(steps)
        case "BertPreTokenizer":
            let words: CharacterSplitter = CharacterSplitter(tables.space, Delimiters.removed)
            let marks: CharacterSplitter = CharacterSplitter(tables.punctuation, Delimiters.isolated)
            out = PreTokenizerSequence([words, marks])
        case "WhitespaceSplit":
            out = CharacterSplitter(tables.space, Delimiters.removed)
        case "Whitespace":
            out = WordSplitter(tables)
        case "Punctuation":
            out = CharacterSplitter(tables.punctuation, try behavior(fields))
        case "Digits":
            let single: Bool = try fields.flag("individual_digits")
            out = CharacterSplitter(tables.numeric, single ? Delimiters.isolated : Delimiters.contiguous)
        case "Metaspace":
            out = try readMetaspace(fields)
        case "ByteLevel":
            _ = fields.take("trim_offsets") // of the post-processor; it has no meaning here
            let prefix: Bool = try fields.flag("add_prefix_space")
            out = ByteLevel(tables, prefixSpace: prefix, useRegex: try fields.flag("use_regex", otherwise: true))
        default:
            let known: String = supported(TokenizerReader.preTokenizers)
            throw fields.refused("the pre-tokenizer '\(type)' is not supported; supported are \(known).")
        }
        try fields.done()
        return out
    }

    private func readMetaspace(_ fields: Fields) throws -> PreTokenizer {
        let sign: [Int] = Texts.decode(try fields.text("replacement"))
        _ = fields.take("str_rep")
        let prefix: Bool = try fields.flag("add_prefix_space", otherwise: true)
        let scheme: String = Texts.string(try fields.text("prepend_scheme", otherwise: prefix ? "always" : "never"))
        let known: Bool = ["always", "first", "never"].contains(scheme)
        if sign.count != 1 || !known || (!prefix && scheme != "never") {
            throw fields.refused("'prepend_scheme' is '\(scheme)'; allowed are always, first, never, with one character.")
        }
        let split: Bool = try fields.flag("split", otherwise: true)
        return Metaspace(sign: sign[0], always: scheme == "always", first: scheme == "first", cutting: split)
    }

    private func behavior(_ fields: Fields) throws -> Delimiters {
        let name: String = Texts.string(try fields.text("behavior", otherwise: "Isolated"))
        switch name {
        case "Removed":
            return Delimiters.removed
        case "Isolated":
            return Delimiters.isolated
        case "Contiguous":
            return Delimiters.contiguous
        default:
            throw fields.refused("'behavior' is '\(name)'; allowed are Removed, Isolated, Contiguous.")
        }
    }

    private func readModel(_ fields: Fields) throws -> Model {
        let merges: JsonValue? = fields.take("merges")
        let content: JsonValue = try fields.needed("vocab")
        let scored: Bool = content.kind == JsonKind.array
        let unnamed: String = scored ? "Unigram" : "WordPiece" // files of before 2021 name no type
        let type: String = Texts.string(try fields.text("type", otherwise: merges == nil ? unnamed : "BPE"))
        if !TokenizerReader.models.contains(type) || scored != (type == "Unigram") {
            let known: String = supported(TokenizerReader.models)
            throw fields.refused("a model of type '\(type)' is not supported; supported are \(known).")
        }
        if scored {
            return try readUnigram(fields, content)
        }
        var ids: [Int] = []
        for item in content.items {
            ids.append(try fields.whole(item, name: "vocab"))
        }
        let vocabulary: Vocabulary = try Vocabulary(content.names, ids: ids, lastWins: false)
        if type == "WordPiece" {
            let out: WordPiece = try WordPiece(
                vocabulary, unknown: try fields.text("unk_token"),
                prefix: try fields.text("continuing_subword_prefix", otherwise: "##"),
                mostCharacters: try fields.number("max_input_chars_per_word", otherwise: 100))
            try fields.done()
            return out
        }
        return try readBpe(fields, vocabulary, merges)
    }

    private func readUnigram(_ fields: Fields, _ content: JsonValue) throws -> Model {
        var pieces: [[UInt8]] = []
        var scores: [Double] = []
        var ids: [Int] = []
        for item in content.items {
            let right: Bool = item.items.count == 2 && item.items[0].kind == JsonKind.text
            if !right || item.items[1].kind != JsonKind.number {
                throw fields.refused("the piece \(ids.count) is not a text and its score.")
            }
            ids.append(ids.count)
            pieces.append(item.items[0].bytes)
            scores.append(try Scores.parse(item.items[1].bytes))
        }
        let vocabulary: Vocabulary = try Vocabulary(pieces, ids: ids, lastWins: true)
        let unknown: Int = try fields.number("unk_id")
        let fallback: Bool = try fields.flag("byte_fallback", otherwise: false)
        try fields.done()
        if unknown >= pieces.count {
            throw fields.refused("'unk_id' is \(unknown), the vocabulary has \(pieces.count) pieces.")
        }
        return Unigram(vocabulary, pieces: pieces, scores: scores, unknown: unknown, byteFallback: fallback)
    }

    private func readBpe(_ fields: Fields, _ vocabulary: Vocabulary, _ merges: JsonValue?) throws -> Model {
        guard let lines = merges else {
            throw fields.refused("'merges' is missing.")
        }
        if let dropout = fields.take("dropout") {
            for digit in dropout.bytes {
                if digit != 0x30 && digit != 0x2E { // anything but 0.0
                    throw fields.refused("'dropout' is not supported: it gives other tokens each time.")
                }
            }
        }
        let prefix: [UInt8] = try fields.text("continuing_subword_prefix", otherwise: "")
        let suffix: [UInt8] = try fields.text("end_of_word_suffix", otherwise: "")
        let fallback: Bool = try fields.flag("byte_fallback", otherwise: false)
        if fallback && !(prefix.isEmpty && suffix.isEmpty) {
            throw fields.refused("'byte_fallback' with a prefix or suffix of pieces is not supported.")
        }
        var unknown: Int = -1
        if let name = fields.take("unk_token") {
            unknown = vocabulary.id(name.bytes)
            if unknown < 0 {
                throw fields.refused("unknown characters are a piece that the vocabulary does not have.")
            }
        }
        let options: BpeOptions = BpeOptions(
            unknown: unknown, fuseUnknown: try fields.flag("fuse_unk", otherwise: false),
            ignoreMerges: try fields.flag("ignore_merges", otherwise: false),
            prefix: prefix, suffix: suffix, byteFallback: fallback)
        try fields.done()
        var made: [Int: Merge] = [:]
        var rank: Int = 0
        for line in lines.items {
            let pair: [[UInt8]] = TokenizerReader.halves(line)
            let left: Int = pair.count == 2 ? vocabulary.id(pair[0]) : -1
            let right: Int = pair.count == 2 ? vocabulary.id(pair[1]) : -1
            var result: Int = -1
            if left >= 0 && right >= 0 && pair[1].starts(with: prefix) {
                result = vocabulary.id(pair[0] + Array(pair[1][prefix.count..<pair[1].count]))
            }
            if result < 0 {
                throw fields.refused("the merge \(rank) is not of two pieces whose sum the vocabulary has.")
            }
            made[Bpe.key(left, right)] = Merge(rank: rank, result: result)
            rank += 1
        }
        return Bpe(vocabulary, merges: made, options: options)
    }

    /// The two pieces of a merge, which is a list of two texts, or one text with a blank between.
    private static func halves(_ line: JsonValue) -> [[UInt8]] {
        if line.kind == JsonKind.array {
            var out: [[UInt8]] = []
            for item in line.items {
                out.append(item.bytes)
            }
            return out
        }
        var left: [UInt8] = []
        var right: [UInt8] = []
        var blanks: Int = 0
        for byte in line.bytes {
            if byte == 0x20 {
                blanks += 1
            } else if blanks == 0 {
                left.append(byte)
            } else {
                right.append(byte)
            }
        }
        return blanks == 1 ? [left, right] : []
    }

    /// Reads the added tokens. Their ids are those that the library gives: the vocabulary's, else the next ones behind it.
    private func readAdded(_ value: JsonValue?, _ vocabulary: Vocabulary) throws -> [AddedToken] {
        var out: [AddedToken] = []
        guard let list = value else {
            return out
        }
        var places: [[UInt8]: Int] = [:]
        var next: Int = vocabulary.count
        for item in list.items {
            let fields: Fields = try Fields(item, location: "tokenizer.json: added_tokens")
            let content: [UInt8] = try fields.text("content")
            var id: Int = vocabulary.id(content)
            if let place = places[content] {
                id = out[place].id
            } else if id < 0 && !content.isEmpty {
                id = next
                next += 1
            }
            _ = fields.take("id")
            _ = fields.take("special")
            let token: AddedToken = AddedToken(
                id: id, content: content, singleWord: try fields.flag("single_word"),
                lstrip: try fields.flag("lstrip"), rstrip: try fields.flag("rstrip"),
                normalized: try fields.flag("normalized"))
            try fields.done()
            if content.isEmpty {
                continue
            }
            if let place = places[content] {
                out[place] = token
            } else {
                places[content] = out.count
                out.append(token)
            }
        }
        return out
    }
}

/// What a tokenizer.json says.
final class TokenizerParts {
    let plain: AddedTokens
    let normalized: AddedTokens
    let added: [AddedToken]
    let normalizer: Normalizer
    let preTokenizer: PreTokenizer
    let model: Model
    let frame: Frame

    init(
        plain: AddedTokens, normalized: AddedTokens, added: [AddedToken], normalizer: Normalizer,
        preTokenizer: PreTokenizer, model: Model, frame: Frame
    ) {
        self.plain = plain
        self.normalized = normalized
        self.added = added
        self.normalizer = normalizer
        self.preTokenizer = preTokenizer
        self.model = model
        self.frame = frame
    }
}
