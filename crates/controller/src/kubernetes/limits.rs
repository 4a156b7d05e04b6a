//! Cuts what only describes to what an object may hold. The journal and what is remembered of machines are never cut: the
//! planner begins nothing that would not fit.
//!
//! | what | the most | why |
//! |---|---|---|
//! | an object | 1.5 MiB | etcd takes no more |
//! | addresses, journal entries, values of a name | 1,000 | the schema |
//! | a condition's message | 8 kB | four copies of it are in a status; the convention is 32 kB |
//! | the message of an address | 100 kB for all of them | two copies of each are in a status |
//! | an Event's note | 1 kB | the apiserver takes no more |

/// The most bytes of a condition's message.
pub(crate) const MESSAGE_MAX: usize = 8_192;

/// The most bytes of an Event's note.
pub(crate) const NOTE_MAX: usize = 1_024;

/// The most bytes of a step that would be taken.
pub(crate) const PROPOSED_MAX: usize = 1_024;

/// The most values of a name in DNS that a status holds.
pub(crate) const VALUES_MAX: usize = 1_000;

/// The most bytes of the messages of all addresses together, and of one of them.
const ADDRESS_MESSAGES_MAX: usize = 100_000;
const ADDRESS_MESSAGE_MAX: usize = 1_024;

/// The most bytes of the message of an address where there are so many.
pub(crate) fn address_message_max(addresses: usize) -> usize {
    (ADDRESS_MESSAGES_MAX / addresses.max(1))
        .clamp(ADDRESS_MESSAGES_MAX / plan::ADDRESSES_MAX, ADDRESS_MESSAGE_MAX)
}

/// A text of at most so many bytes, which says how much is missing.
pub(crate) fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let rest = |from: usize| format!("… and {} more characters", text[from..].chars().count());
    // What says how much is missing is longest where all is.
    let room = bytes_max.saturating_sub(rest(0).len());
    let end = text.floor_char_boundary(room);
    format!("{}{}", &text[..end], rest(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_says_how_much_is_missing() {
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
