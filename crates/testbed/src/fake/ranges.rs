//! The ranges that fake clouds allocate addresses from.

use std::net::Ipv4Addr;

/// Returns the n-th address of the concatenated ranges. It starts over when the ranges are used up.
pub(super) fn nth_of(ranges: &[(Ipv4Addr, u32)], n: u32) -> String {
    let total: u32 = ranges.iter().map(|(_, size)| size).sum();
    let mut left = n % total;
    for (first, size) in ranges {
        if left < *size {
            return Ipv4Addr::from_bits(first.to_bits() + left).to_string();
        }
        left -= size;
    }
    String::new()
}
