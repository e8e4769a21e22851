// The tokenizer of PocketBERT's Android demo (org.pocketbert.tokenizers, Java) in Swift 5.7 for iOS 16, Foundation only.
// The project parses these sources and runs them translated to Python; it has never compiled them: it has no Swift compiler.

/// The fields of one JSON object of tokenizer.json; a field that nobody asks for is refused by name.
final class Fields {
    let location: String
    private let value: JsonValue
    private var taken: [Bool]

    init(_ value: JsonValue, location: String) throws {
        if value.kind != JsonKind.object {
            throw TokenizerError("\(location): \(value.shown()) is no object.")
        }
        self.location = location
        self.value = value
        self.taken = [Bool](repeating: false, count: value.items.count)
        for index in 0..<value.names.count {
            if place(value.names[index]) != index {
                throw TokenizerError("\(location): the key '\(Texts.string(value.names[index]))' is there twice.")
            }
        }
    }

    private func place(_ name: [UInt8]) -> Int {
        for index in 0..<value.names.count {
            if value.names[index] == name {
                return index
            }
        }
        return -1
    }

    func refused(_ what: String) -> TokenizerError {
        return TokenizerError("\(location): \(what)")
    }

    /// Takes a field; nil where it is missing or null.
    func take(_ name: String) -> JsonValue? {
        let index: Int = place(Texts.utf8(name))
        if index < 0 {
            return nil
        }
        taken[index] = true
        if value.items[index].kind == JsonKind.null {
            return nil
        }
        return value.items[index]
    }

    func needed(_ name: String) throws -> JsonValue {
        guard let found = take(name) else {
            throw refused("'\(name)' is missing.")
        }
        return found
    }

    func text(_ name: String) throws -> [UInt8] {
        let found: JsonValue = try needed(name)
        if found.kind != JsonKind.text {
            throw refused("'\(name)' is \(found.shown()), it must be a text.")
        }
        return found.bytes
    }

    func text(_ name: String, otherwise: String) throws -> [UInt8] {
        guard let found = take(name) else {
            return Texts.utf8(otherwise)
        }
        if found.kind != JsonKind.text {
            throw refused("'\(name)' is \(found.shown()), it must be a text.")
        }
        return found.bytes
    }

    func flag(_ name: String) throws -> Bool {
        let found: JsonValue = try needed(name)
        if found.kind != JsonKind.flag {
            throw refused("'\(name)' is \(found.shown()), it must be true or false.")
        }
        return found.flag
    }

    func flag(_ name: String, otherwise: Bool) throws -> Bool {
        guard let found = take(name) else {
            return otherwise
        }
        if found.kind != JsonKind.flag {
            throw refused("'\(name)' is \(found.shown()), it must be true or false.")
        }
        return found.flag
    }

    func number(_ name: String) throws -> Int {
        let found: JsonValue = try needed(name)
        return try whole(found, name: name)
    }

    func number(_ name: String, otherwise: Int) throws -> Int {
        guard let found = take(name) else {
            return otherwise
        }
        return try whole(found, name: name)
    }

    /// A whole number from 0 to 999999999.
    func whole(_ number: JsonValue, name: String) throws -> Int {
        var out: Int = 0
        var right: Bool = number.kind == JsonKind.number && number.bytes.count < 10
        for byte in number.bytes {
            let digit: Int = Int(byte) - 0x30
            right = right && digit >= 0 && digit <= 9
            out = right ? out * 10 + digit : 0
        }
        if !right {
            throw refused("'\(name)' is \(number.shown()), it must be a whole number.")
        }
        return out
    }

    func list(_ name: String) throws -> [JsonValue] {
        let found: JsonValue = try needed(name)
        if found.kind != JsonKind.array {
            throw refused("'\(name)' is \(found.shown()), it must be a list.")
        }
        return found.items
    }

    func object(_ name: String) throws -> Fields {
        let found: JsonValue = try needed(name)
        return try Fields(found, location: location + "." + name)
    }

    /// Refuses the fields that were not taken.
    func done() throws {
        for index in 0..<taken.count {
            if !taken[index] {
                let name: String = Texts.string(value.names[index])
                throw refused("'\(name)' is not known here; nothing of a tokenizer is left out silently.")
            }
        }
    }
}
