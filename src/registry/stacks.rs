//! [`Stacks`]: what batches put under names, in scopes. The newest batch of a name is on top; closing one takes out its
//! own entries and uncovers what they covered. Each change is one swap of an immutable state, so that a batch is seen
//! whole or not at all, and a reader keeps what it has loaded.

use std::sync::Arc;

use immutable_chunkmap::map;

use super::swap::Swap;

/// A sorted map that is copied by sharing: a change copies one path of nodes of this size.
type Map<K, V> = map::Map<K, V, 32>;

/// What one scope holds, by name: each stack from the oldest batch to the newest, and never empty.
pub(crate) type Names<T> = Map<Arc<str>, Arc<Vec<Entry<T>>>>;

/// One item of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Entry<T> {
    batch: u64,
    /// Unique among these stacks; a new one where a batch replaced the item.
    pub(crate) id: u64,
    pub(crate) item: T,
}

/// All that stacks hold, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct State<T> {
    last: u64,
    closed: bool,
    scopes: Map<Arc<str>, Names<T>>,
    batches: Map<u64, Batch>,
}

/// An open batch: its scope, and its names.
type Batch = (Arc<str>, Arc<[Arc<str>]>);

impl<T: Clone> Default for State<T> {
    fn default() -> Self {
        Self { last: 0, closed: false, scopes: Map::new(), batches: Map::new() }
    }
}

/// Stacks of named items in scopes.
#[derive(Debug)]
pub(crate) struct Stacks<T>(Swap<State<T>>);

impl<T: Clone> Stacks<T> {
    pub(crate) const fn over(swap: Swap<State<T>>) -> Self {
        Self(swap)
    }

    /// Adds a batch on top of `scope`; answers its number, or `None` after [`Stacks::close_all`].
    pub(crate) fn add(&self, scope: &str, items: &[(Arc<str>, T)]) -> Option<u64> {
        self.update(|state| {
            if state.closed {
                return None;
            }
            state.last += 1;
            let batch = state.last;
            state.put(batch, &Arc::from(scope), items, |_, _| false);
            Some(batch)
        })
    }

    /// Puts `items` in the place of what the batch holds, at its own height. An item that `same` calls unchanged keeps
    /// its id. Answers whether the batch was open.
    pub(crate) fn replace(&self, batch: u64, items: &[(Arc<str>, T)], same: impl Fn(&T, &T) -> bool) -> bool {
        self.update(|state| {
            let Some((scope, names)) = state.batches.get(&batch).cloned() else { return false };
            let gone = names.iter().filter(|name| items.iter().all(|(kept, _)| kept != *name));
            state.take(batch, &scope, gone);
            state.put(batch, &scope, items, &same);
            true
        })
    }

    /// Takes a batch out. A second time it does nothing.
    pub(crate) fn close(&self, batch: u64) {
        self.update(|state| {
            if let Some((scope, names)) = state.batches.remove_cow(&batch) {
                state.take(batch, &scope, names.iter());
            }
        });
    }

    /// Takes everything out, and takes nothing more in.
    pub(crate) fn close_all(&self) {
        self.update(|state| *state = State { closed: true, last: state.last, ..State::default() });
    }

    /// What a scope holds now.
    pub(crate) fn load(&self, scope: &str) -> Names<T> {
        self.0.load().and_then(|state| state.scopes.get(scope).cloned()).unwrap_or_default()
    }

    /// How many scopes hold something, and how many batches are open.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.0.load().map_or((0, 0), |state| (state.scopes.len(), state.batches.len()))
    }

    /// Changes the state in one step; `change` may run again, on a newer state.
    fn update<R>(&self, change: impl Fn(&mut State<T>) -> R) -> R {
        loop {
            let before = self.0.load();
            let mut state = before.as_deref().cloned().unwrap_or_default();
            let answer = change(&mut state);
            if self.0.replace(before.as_ref(), Arc::new(state)) {
                return answer;
            }
        }
    }
}

impl<T: Clone> State<T> {
    fn put(&mut self, batch: u64, scope: &Arc<str>, items: &[(Arc<str>, T)], same: impl Fn(&T, &T) -> bool) {
        let mut last = self.last;
        let names = self.scopes.get_or_default_cow(Arc::clone(scope));
        for (name, item) in items {
            let stack = Arc::make_mut(names.get_or_default_cow(Arc::clone(name)));
            let height = stack.partition_point(|entry| entry.batch < batch);
            last += 1;
            let mut entry = Entry { batch, id: last, item: item.clone() };
            match stack.get_mut(height).filter(|old| old.batch == batch) {
                Some(old) => {
                    if same(&old.item, item) {
                        entry.id = old.id;
                    }
                    *old = entry;
                }
                None => stack.insert(height, entry),
            }
        }
        if items.is_empty() && names.len() == 0 {
            self.scopes.remove_cow(scope);
        }
        self.last = last;
        let names = items.iter().map(|(name, _)| Arc::clone(name)).collect();
        self.batches.insert_cow(batch, (Arc::clone(scope), names));
    }

    fn take<'a>(&mut self, batch: u64, scope: &Arc<str>, gone: impl Iterator<Item = &'a Arc<str>>) {
        let Some(names) = self.scopes.get_mut_cow(scope) else { return };
        for name in gone {
            let Some(stack) = names.get_mut_cow(name) else { continue };
            let stack = Arc::make_mut(stack);
            stack.retain(|entry| entry.batch != batch);
            if stack.is_empty() {
                names.remove_cow(name);
            }
        }
        if names.len() == 0 {
            self.scopes.remove_cow(scope);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn named(items: &[(&str, u8)]) -> Vec<(Arc<str>, u8)> {
        items.iter().map(|(name, item)| (Arc::from(*name), *item)).collect()
    }

    fn tops(stacks: &Stacks<u8>, scope: &str) -> Vec<(String, u8)> {
        let names = stacks.load(scope);
        names.into_iter().map(|(name, stack)| (name.to_string(), stack.last().unwrap().item)).collect()
    }

    fn shown(items: &[(&str, u8)]) -> Vec<(String, u8)> {
        items.iter().map(|(name, item)| ((*name).to_owned(), *item)).collect()
    }

    #[test]
    fn the_newest_batch_wins_and_closing_uncovers() {
        let stacks = Stacks::over(Swap::new());
        let first = stacks.add("", &named(&[("a", 1), ("b", 1)])).unwrap();
        let second = stacks.add("", &named(&[("b", 2), ("c", 2)])).unwrap();
        let third = stacks.add("", &named(&[("b", 3)])).unwrap();
        assert_eq!(tops(&stacks, ""), shown(&[("a", 1), ("b", 3), ("c", 2)]));
        stacks.close(second);
        assert_eq!(tops(&stacks, ""), shown(&[("a", 1), ("b", 3)]));
        stacks.close(third);
        stacks.close(third);
        assert_eq!(tops(&stacks, ""), shown(&[("a", 1), ("b", 1)]));
        stacks.close(first);
        assert_eq!(stacks.counts(), (0, 0), "nothing stays behind");
    }

    #[test]
    fn scopes_are_apart() {
        let stacks = Stacks::over(Swap::new());
        let here = stacks.add("one", &named(&[("a", 1)])).unwrap();
        stacks.add("two", &named(&[("a", 2)])).unwrap();
        assert_eq!((tops(&stacks, "one"), tops(&stacks, "two")), (shown(&[("a", 1)]), shown(&[("a", 2)])));
        assert_eq!(tops(&stacks, "three"), shown(&[]));
        stacks.close(here);
        assert_eq!((tops(&stacks, "one"), stacks.counts()), (shown(&[]), (1, 1)));
    }

    #[test]
    fn a_replaced_batch_keeps_its_height_and_what_is_the_same_keeps_its_id() {
        let stacks = Stacks::over(Swap::new());
        let below = stacks.add("", &named(&[("a", 1), ("b", 1), ("c", 1)])).unwrap();
        let above = stacks.add("", &named(&[("a", 9)])).unwrap();
        let ids = |name: &str| stacks.load("").get(name).unwrap().iter().map(|entry| entry.id).collect::<Vec<_>>();
        let before = (ids("a"), ids("b"));
        assert!(stacks.replace(below, &named(&[("a", 2), ("b", 1), ("d", 2)]), PartialEq::eq));
        assert_eq!(tops(&stacks, ""), shown(&[("a", 9), ("b", 1), ("d", 2)]), "the later batch still covers");
        assert_eq!((ids("b"), ids("a")[1]), (before.1, before.0[1]));
        assert_ne!(ids("a")[0], before.0[0]);
        stacks.close(above);
        assert_eq!(tops(&stacks, ""), shown(&[("a", 2), ("b", 1), ("d", 2)]));
        assert!(stacks.replace(below, &[], PartialEq::eq));
        assert!(stacks.replace(below, &named(&[("e", 3)]), PartialEq::eq));
        stacks.close(below);
        assert_eq!(stacks.counts(), (0, 0));
        assert!(!stacks.replace(below, &named(&[("a", 2)]), PartialEq::eq), "a closed batch stays closed");
    }

    #[test]
    fn after_the_end_nothing_is_taken_in() {
        let stacks = Stacks::over(Swap::new());
        let batch = stacks.add("", &named(&[("a", 1)])).unwrap();
        stacks.close_all();
        assert_eq!(stacks.add("", &named(&[("a", 1)])), None);
        assert!(!stacks.replace(batch, &named(&[("a", 1)]), PartialEq::eq));
        stacks.close(batch);
        assert_eq!(stacks.counts(), (0, 0));
    }
}
