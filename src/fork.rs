//! [`PerProcess`]: state that belongs to one process and is made anew in a forked child, where inherited locks may be
//! held by threads that do not exist and inherited descriptors share their locks with the parent.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

/// A value that is made once in each process. Nothing in it is locked while it is looked up.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(ArcSwapOption<(i32, T)>);

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(ArcSwapOption::const_empty())
    }

    /// This process's value, made by `make` where it has none yet.
    pub(crate) fn get<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<(i32, T)>, E> {
        let pid = rustix::process::getpid().as_raw_pid();
        let now = self.0.load();
        if let Some(value) = now.as_ref().filter(|value| value.0 == pid) {
            return Ok(Arc::clone(value));
        }
        let made = Arc::new((pid, make()?));
        let before = self.0.compare_and_swap(&now, Some(Arc::clone(&made)));
        // Another thread of this process may have been first: its value is the one.
        Ok(before.as_ref().filter(|value| value.0 == pid).cloned().unwrap_or(made))
    }

    /// Lets go of the value.
    pub(crate) fn clear(&self) {
        self.0.store(None);
    }
}
