//! The scope store under loom: every interleaving of threads that register, replace, close and look, up to a bound.
//! The store itself is compiled in here, over a swap that loom can see.
#![cfg(loom)]

#[path = "../../src/registry/stacks.rs"]
mod stacks;

/// The swap's promises, in loom's own terms: a value is read whole, and replaced only where it is still the one read.
mod swap {
    use std::sync::Arc;

    #[derive(Debug)]
    pub(crate) struct Swap<T>(loom::sync::Mutex<Option<Arc<T>>>);

    impl<T> Swap<T> {
        pub(crate) fn new() -> Self {
            Self(loom::sync::Mutex::new(None))
        }

        pub(crate) fn load(&self) -> Option<Arc<T>> {
            self.0.lock().unwrap().clone()
        }

        pub(crate) fn replace(&self, old: Option<&Arc<T>>, new: Arc<T>) -> bool {
            let mut now = self.0.lock().unwrap();
            let same = now.as_ref().map(Arc::as_ptr) == old.map(Arc::as_ptr);
            if same {
                *now = Some(new);
            }
            same
        }
    }
}

use std::sync::Arc;

use stacks::Stacks;
use swap::Swap;

type Items = Vec<(Arc<str>, u8)>;

fn items(names: &[&str], item: u8) -> Items {
    names.iter().map(|name| (Arc::from(*name), item)).collect()
}

fn top(stacks: &Stacks<u8>, name: &str) -> Option<u8> {
    stacks.load("").get(name).and_then(|stack| stack.last()).map(|entry| entry.item)
}

fn bounded(check: impl Fn() + Clone + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || spawn(check.clone()).join().unwrap());
}

/// A thread with room for unoptimised code.
fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> loom::thread::JoinHandle<T> {
    loom::thread::Builder::new().stack_size(1 << 16).spawn(work).unwrap()
}

#[test]
fn a_batch_is_seen_whole_or_not_at_all() {
    bounded(|| {
        let stacks = Arc::new(Stacks::over(Swap::new()));
        let writer = {
            let stacks = Arc::clone(&stacks);
            spawn(move || {
                let batch = stacks.add("", &items(&["a", "b"], 1)).unwrap();
                assert!(stacks.replace(batch, &items(&["b", "a"], 2), PartialEq::eq));
                stacks.close(batch);
            })
        };
        for _ in 0..2 {
            let seen = stacks.load("");
            let of = |name: &str| seen.get(name).map(|stack| stack[0].item);
            assert_eq!(of("a"), of("b"));
        }
        writer.join().unwrap();
        assert_eq!(stacks.counts(), (0, 0));
    });
}

#[test]
fn no_registration_is_lost_or_left_behind() {
    bounded(|| {
        let stacks = Arc::new(Stacks::over(Swap::new()));
        let below = stacks.add("", &items(&["a"], 0)).unwrap();
        let threads: Vec<_> = [1, 2]
            .map(|which| {
                let stacks = Arc::clone(&stacks);
                spawn(move || {
                    let batch = stacks.add("", &items(&["a"], which)).unwrap();
                    let on_top = top(&stacks, "a");
                    assert!(matches!(on_top, Some(1 | 2)), "a closed batch uncovers, an open one covers: {on_top:?}");
                    stacks.close(batch);
                })
            })
            .into();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!((top(&stacks, "a"), stacks.counts()), (Some(0), (1, 1)));
        stacks.close(below);
        assert_eq!(stacks.counts(), (0, 0));
    });
}

#[test]
fn a_refresh_and_a_close_that_meet_leave_nothing() {
    bounded(|| {
        let stacks = Arc::new(Stacks::over(Swap::new()));
        let batch = stacks.add("", &items(&["a"], 1)).unwrap();
        let refresh = {
            let stacks = Arc::clone(&stacks);
            spawn(move || stacks.replace(batch, &items(&["b"], 2), PartialEq::eq))
        };
        stacks.close(batch);
        refresh.join().unwrap();
        assert_eq!((stacks.counts(), top(&stacks, "a"), top(&stacks, "b")), ((0, 0), None, None));
    });
}

#[test]
fn after_the_end_nothing_is_registered() {
    bounded(|| {
        let stacks = Arc::new(Stacks::over(Swap::new()));
        let late = {
            let stacks = Arc::clone(&stacks);
            spawn(move || stacks.add("s", &items(&["a"], 1)))
        };
        stacks.close_all();
        let number = late.join().unwrap();
        assert_eq!((stacks.counts(), stacks.add("", &items(&["a"], 2))), ((0, 0), None));
        assert!(number.is_none_or(|number| !stacks.replace(number, &[], PartialEq::eq)));
    });
}
