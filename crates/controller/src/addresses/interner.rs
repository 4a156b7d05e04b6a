//! Keeps equal values once.
//!
//! In: a value. Out: the shared copy of it. Values that nobody uses any more are removed from time to time.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Keeps equal values once.
pub(super) struct Interner<T: ?Sized> {
    values: BTreeSet<Arc<T>>,
    /// When there are this many values, unused ones are removed.
    cleaned_at: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self { values: BTreeSet::new(), cleaned_at: CLEANED_AT_MIN }
    }
}

/// The lowest value of `cleaned_at`.
const CLEANED_AT_MIN: usize = 1_000;

impl<T: Ord + ?Sized> Interner<T> {
    /// The shared copy of a value.
    pub(super) fn intern<V: Borrow<T> + Into<Arc<T>>>(&mut self, value: V) -> Arc<T> {
        if let Some(known) = self.values.get(value.borrow()) {
            return Arc::clone(known);
        }
        if self.values.len() >= self.cleaned_at {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.cleaned_at = CLEANED_AT_MIN.max(self.values.len() * 2);
        }
        let value: Arc<T> = value.into();
        self.values.insert(Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_nobody_uses_any_more_are_removed() {
        let mut texts = Interner::<str>::default();
        let kept = texts.intern("kept".to_owned());
        (0..10_000).for_each(|number| _ = texts.intern(number.to_string()));
        assert!(texts.values.len() <= CLEANED_AT_MIN);
        assert!(Arc::ptr_eq(&kept, &texts.intern("kept".to_owned())));
    }
}
