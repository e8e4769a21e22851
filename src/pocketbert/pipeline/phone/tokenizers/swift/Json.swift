// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// What a JSON value is.
enum JsonKind {
    case object
    case array
    case text
    case number
    case flag
    case null
}

/// A JSON value. Texts and keys are UTF-8, numbers the characters that stand there.
final class JsonValue {
    let kind: JsonKind
    let bytes: [UInt8]
    let names: [[UInt8]]
    let items: [JsonValue]
    let flag: Bool

    init(kind: JsonKind, bytes: [UInt8], names: [[UInt8]], items: [JsonValue], flag: Bool) {
        self.kind = kind
        self.bytes = bytes
        self.names = names
        self.items = items
        self.flag = flag
    }

    /// A few characters of it, for messages.
    func shown() -> String {
        switch kind {
        case JsonKind.object:
            return "an object"
        case JsonKind.array:
            return "a list"
        case JsonKind.text:
            return "'" + Texts.string(bytes) + "'"
        case JsonKind.number:
            return Texts.string(bytes)
        case JsonKind.flag:
            return flag ? "true" : "false"
        case JsonKind.null:
            return "null"
        }
    }
}

/// Reads JSON. Foundation's reader is not used: it makes dictionaries in which canonically equal keys are one.
final class JsonParser {
    private static let deepest: Int = 64

    private let raw: [UInt8]
    private var at: Int = 0
    private var depth: Int = 0

    private init(_ raw: [UInt8]) {
        self.raw = raw
    }

    /// Reads a whole file.
    static func read(_ raw: [UInt8]) throws -> JsonValue {
        let parser: JsonParser = JsonParser(raw)
        let out: JsonValue = try parser.value()
        parser.skipBlanks()
        if parser.at != raw.count {
            throw parser.wrong("there is more behind its end")
        }
        return out
    }

    private func wrong(_ what: String) -> TokenizerError {
        return TokenizerError("tokenizer.json: not a tokenizer: \(what), at byte \(at).")
    }

    private func skipBlanks() {
        while at < raw.count && isBlank(Int(raw[at])) {
            at += 1
        }
    }

    private func isBlank(_ byte: Int) -> Bool {
        return byte == 0x20 || byte == 0x0A || byte == 0x0D || byte == 0x09
    }

    private func peek() throws -> Int {
        skipBlanks()
        if at >= raw.count {
            throw wrong("it ends in the middle")
        }
        return Int(raw[at])
    }

    private func expect(_ byte: Int) throws {
        if try peek() != byte {
            throw wrong("a character that is not expected")
        }
        at += 1
    }

    private func value() throws -> JsonValue {
        let next: Int = try peek()
        if next == 0x7B || next == 0x5B {
            depth += 1
            if depth > JsonParser.deepest {
                throw wrong("more than \(JsonParser.deepest) levels")
            }
            let out: JsonValue = try (next == 0x7B ? object() : array())
            depth -= 1
            return out
        }
        if next == 0x22 {
            let content: [UInt8] = try text()
            return JsonValue(kind: JsonKind.text, bytes: content, names: [], items: [], flag: false)
        }
        if next == 0x74 {
            try word(Texts.utf8("true"))
            return JsonValue(kind: JsonKind.flag, bytes: [], names: [], items: [], flag: true)
        }
        if next == 0x66 {
            try word(Texts.utf8("false"))
            return JsonValue(kind: JsonKind.flag, bytes: [], names: [], items: [], flag: false)
        }
        if next == 0x6E {
            try word(Texts.utf8("null"))
            return JsonValue(kind: JsonKind.null, bytes: [], names: [], items: [], flag: false)
        }
        let digits: [UInt8] = try number()
        return JsonValue(kind: JsonKind.number, bytes: digits, names: [], items: [], flag: false)
    }

    private func object() throws -> JsonValue {
        var names: [[UInt8]] = []
        var items: [JsonValue] = []
        at += 1
        if try peek() == 0x7D {
            at += 1
            return JsonValue(kind: JsonKind.object, bytes: [], names: names, items: items, flag: false)
        }
        while true {
            if try peek() != 0x22 {
                throw wrong("a key that is no text")
            }
            let name: [UInt8] = try text()
            names.append(name)
            try expect(0x3A)
            let item: JsonValue = try value()
            items.append(item)
            if try peek() == 0x7D {
                at += 1
                return JsonValue(kind: JsonKind.object, bytes: [], names: names, items: items, flag: false)
            }
            try expect(0x2C)
        }
    }

    private func array() throws -> JsonValue {
        var items: [JsonValue] = []
        at += 1
        if try peek() == 0x5D {
            at += 1
            return JsonValue(kind: JsonKind.array, bytes: [], names: [], items: items, flag: false)
        }
        while true {
            let item: JsonValue = try value()
            items.append(item)
            if try peek() == 0x5D {
                at += 1
                return JsonValue(kind: JsonKind.array, bytes: [], names: [], items: items, flag: false)
            }
            try expect(0x2C)
        }
    }

    private func word(_ letters: [UInt8]) throws {
        for letter in letters {
            if at >= raw.count || raw[at] != letter {
                throw wrong("a word that is not known")
            }
            at += 1
        }
    }

    private func number() throws -> [UInt8] {
        let start: Int = at
        while at < raw.count && isOfNumber(Int(raw[at])) {
            at += 1
        }
        if at == start {
            throw wrong("a character that is not expected")
        }
        return Array(raw[start..<at])
    }

    private func isOfNumber(_ byte: Int) -> Bool {
        let digit: Bool = byte >= 0x30 && byte <= 0x39
        let sign: Bool = byte == 0x2B || byte == 0x2D || byte == 0x2E
        return digit || sign || byte == 0x45 || byte == 0x65
    }

    private func text() throws -> [UInt8] {
        var out: [UInt8] = []
        at += 1
        while at < raw.count {
            let next: UInt8 = raw[at]
            at += 1
            if next == 0x22 {
                return out
            }
            if next == 0x5C {
                let escaped: [UInt8] = try escape()
                out.append(contentsOf: escaped)
            } else {
                out.append(next)
            }
        }
        throw wrong("a text without an end")
    }

    private func escape() throws -> [UInt8] {
        if at >= raw.count {
            throw wrong("a text without an end")
        }
        let kind: Int = Int(raw[at])
        at += 1
        switch kind {
        case 0x62:
            return [0x08]
        case 0x66:
            return [0x0C]
        case 0x6E:
            return [0x0A]
        case 0x72:
            return [0x0D]
        case 0x74:
            return [0x09]
        case 0x22, 0x2F, 0x5C:
            return [UInt8(kind)]
        case 0x75:
            return try escapedCode()
        default:
            throw wrong("an escape that is not known")
        }
    }

    private func escapedCode() throws -> [UInt8] {
        let code: Int = try hexadecimal()
        if code < 0xD800 || code >= 0xE000 {
            return Texts.encode(code)
        }
        var paired: Bool = code < 0xDC00 && at + 1 < raw.count
        if paired {
            let next: Int = Int(raw[at])
            let kind: Int = Int(raw[at + 1])
            paired = next == 0x5C && kind == 0x75
        }
        if !paired {
            throw wrong("half of a surrogate pair")
        }
        at += 2
        let low: Int = try hexadecimal()
        if low < 0xDC00 || low >= 0xE000 {
            throw wrong("half of a surrogate pair")
        }
        let high: Int = (code - 0xD800) * 0x400
        return Texts.encode(0x10000 + high + low - 0xDC00)
    }

    private func hexadecimal() throws -> Int {
        var out: Int = 0
        for _ in 0..<4 {
            if at >= raw.count {
                throw wrong("a text without an end")
            }
            let byte: Int = Int(raw[at])
            at += 1
            if byte >= 0x30 && byte <= 0x39 {
                out = out * 16 + byte - 0x30
            } else if byte >= 0x41 && byte <= 0x46 {
                out = out * 16 + byte - 0x41 + 10
            } else if byte >= 0x61 && byte <= 0x66 {
                out = out * 16 + byte - 0x61 + 10
            } else {
                throw wrong("an escape that is not known")
            }
        }
        return out
    }
}
