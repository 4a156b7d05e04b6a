//! A deterministic random number generator.

use std::time::Duration;

/// A random number generator. The same seed and purpose always give the same numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator for one purpose. Numbers drawn for one purpose do not influence those drawn for another.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(purpose.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, mix))
    }

    /// A random number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % sides.max(1)
    }

    /// Returns true with a probability of one in `sides`.
    pub fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    /// A random duration below `longest`, in whole milliseconds.
    pub fn up_to(&mut self, longest: Duration) -> Duration {
        Duration::from_millis(self.roll(u64::try_from(longest.as_millis()).unwrap_or(u64::MAX)))
    }

    /// A random element.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let at = usize::try_from(self.roll(from.len() as u64)).unwrap_or(0);
        &from[at]
    }
}
