//! [`Swap`]: a value that is read whole and replaced whole, without a lock, so that a forked child finds none held.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

/// A value that begins as nothing.
#[derive(Debug)]
pub(crate) struct Swap<T>(ArcSwapOption<T>);

impl<T> Swap<T> {
    pub(crate) const fn new() -> Self {
        Self(ArcSwapOption::const_empty())
    }

    pub(crate) fn load(&self) -> Option<Arc<T>> {
        self.0.load_full()
    }

    /// Puts `new` in the place of `old`; `false` where something else is there by now.
    pub(crate) fn replace(&self, old: Option<&Arc<T>>, new: Arc<T>) -> bool {
        // `old` is held, so that no other value can have its address.
        let old = old.map_or(std::ptr::null(), Arc::as_ptr);
        let before = self.0.compare_and_swap(old, Some(new));
        before.as_ref().map_or(std::ptr::null(), Arc::as_ptr) == old
    }
}
