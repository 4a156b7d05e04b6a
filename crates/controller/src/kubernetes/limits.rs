//! Shortens descriptive texts to the limits of an object. The journal and the data about VMs are never shortened: the
//! planner starts nothing that would not fit.
//!
//! | what | limit | why |
//! |---|---|---|
//! | an object | 1.5 MiB | limit of etcd |
//! | addresses, journal entries, values of a DNS name | 1,000 | limit of the schema |
//! | a condition's message | 8 kB | a status has four copies of it; the convention is 32 kB |
//! | the messages of all addresses | 100 kB | a status has two copies of each |
//! | an Event's note | 1 kB | limit of the apiserver |

/// The most bytes of a condition's message.
pub(crate) const MESSAGE_MAX: usize = 8_192;

/// The most bytes of an Event's note.
pub(crate) const NOTE_MAX: usize = 1_024;

/// The most bytes of a proposed step.
pub(crate) const PROPOSED_MAX: usize = 1_024;

/// The most values of a DNS name in a status.
pub(crate) const VALUES_MAX: usize = 1_000;

/// The most bytes of the messages of all addresses together.
const ADDRESS_MESSAGES_MAX: usize = 100_000;

/// The most bytes of the message of one address.
const ADDRESS_MESSAGE_MAX: usize = 1_024;

/// The most bytes of the message of one address, given the number of addresses.
pub(crate) fn address_message_max(addresses: usize) -> usize {
    (ADDRESS_MESSAGES_MAX / addresses.max(1))
        .clamp(ADDRESS_MESSAGES_MAX / plan::ADDRESSES_MAX, ADDRESS_MESSAGE_MAX)
}

/// Shortens a text to this number of bytes. A shortened text ends with the number of removed characters.
pub(crate) fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let rest = |from: usize| format!("… and {} more characters", text[from..].chars().count());
    // The longest possible suffix.
    let room = bytes_max.saturating_sub(rest(0).len());
    let end = text.floor_char_boundary(room);
    format!("{}{}", &text[..end], rest(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_so() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut(&"a".repeat(100), 40), format!("{}… and 87 more characters", "a".repeat(13)));
        for max in [30, 33, 64, 1_024] {
            let text = cut(&"é…".repeat(1_000), max);
            assert!(text.len() <= max && text.ends_with(" more characters"), "{max}: {text}");
        }
    }

    #[test]
    fn messages_of_many_addresses_are_short() {
        assert_eq!([0, 1, 200, 1_000, 2_000].map(address_message_max), [1_024, 1_024, 500, 100, 100]);
    }
}
