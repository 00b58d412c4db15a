//! [`Order`]: jobs that threads share, each of which may make more. What they give is put together in the order of
//! their places, however the threads run: the first places first, and no more of them than the caps let in.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Gate;
use super::walk::Walked;
use crate::error::ToolError;

/// How many pieces may be done while something before them is not.
const MAX_EARLY: usize = 1024;
/// How long a thread without a job waits before it asks whether the call is over.
const PAUSE: Duration = Duration::from_millis(50);

/// Where in the order: a name whose separators sort before every other byte, so that a folder's content follows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(Vec<u8>);

impl Place {
    /// The place of a name.
    pub(super) fn of(rel: &[u8]) -> Self {
        Self(rel.iter().map(|byte| if *byte == b'/' { 0 } else { *byte }).collect())
    }

    /// Before all that is beneath a name, and after the name itself.
    pub(super) fn beneath(rel: &[u8]) -> Self {
        let mut place = Self::of(rel);
        if !rel.is_empty() {
            place.0.push(0);
        }
        place
    }
}

/// After how much of it the work ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    /// Entries looked at.
    pub(crate) entries: u64,
    /// Bytes of files.
    pub(crate) bytes: u64,
    /// The weight of the items: rows of an answer.
    pub(crate) weight: usize,
}

impl Caps {
    /// Whether something that is in order is more than these.
    pub(super) fn passed<T>(&self, by: &Walked<T>) -> bool {
        by.weight > self.weight || by.entries > self.entries || by.bytes > self.bytes
    }
}

/// A job's end: what it gave, and the jobs that it made.
pub(super) struct Done<J, T> {
    pub(super) place: Place,
    pub(super) walked: Walked<T>,
    pub(super) jobs: Vec<(Place, J)>,
}

pub(super) struct Order<J, T> {
    state: Mutex<State<J, T>>,
    changed: Condvar,
    over: AtomicBool,
    caps: Caps,
}

struct State<J, T> {
    waiting: BTreeMap<Place, J>,
    under_way: Vec<Place>,
    /// Done, while something before it is not.
    early: BTreeMap<Place, Walked<T>>,
    whole: Walked<T>,
    idle: usize,
    error: Option<ToolError>,
}

/// Ends the work where its thread panics, so that no other waits for what will not come.
pub(super) struct Attendance<'a, J, T>(&'a Order<J, T>);

impl<J, T> Drop for Attendance<'_, J, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

impl<J, T> Order<J, T> {
    pub(super) fn new(caps: Caps, place: Place, job: J) -> Self {
        let state = State {
            waiting: BTreeMap::from([(place, job)]),
            under_way: Vec::new(),
            early: BTreeMap::new(),
            whole: Walked::default(),
            idle: 0,
            error: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), over: AtomicBool::new(false), caps }
    }

    /// Held by each thread while it takes jobs.
    pub(super) fn attend(&self) -> Attendance<'_, J, T> {
        Attendance(self)
    }

    /// Set once nothing more is wanted: what is under way then is for nothing.
    pub(super) fn over(&self) -> &AtomicBool {
        &self.over
    }

    /// Hands in a job's end and gives the next job, waiting for one if need be; `None` once the work is over.
    pub(super) fn next(&self, mut done: Option<Done<J, T>>, gate: &dyn Gate) -> Option<(Place, J)> {
        loop {
            let mut state = self.lock();
            if let Some(done) = done.take() {
                self.hand_in(&mut state, done);
            }
            if self.over.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(job) = state.take(&self.caps) {
                if state.idle > 0 && !state.waiting.is_empty() {
                    self.changed.notify_one();
                }
                return Some(job);
            }
            if state.under_way.is_empty() {
                drop(state);
                self.end();
                return None;
            }
            state.idle += 1;
            let waited = self.changed.wait_timeout(state, PAUSE);
            waited.unwrap_or_else(PoisonError::into_inner).0.idle -= 1;
            if let Err(error) = gate.poll() {
                self.fail(error);
                return None;
            }
        }
    }

    /// Ends the work: it gives nothing but this error.
    pub(super) fn fail(&self, error: ToolError) {
        let mut state = self.lock();
        if !self.over.load(Ordering::Relaxed) {
            state.error = Some(error);
        }
        drop(state);
        self.end();
    }

    /// All that the jobs gave, in order; what is past the caps is left out.
    pub(super) fn into_whole(self) -> Result<Walked<T>, ToolError> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.error.map_or(Ok(state.whole), Err)
    }

    fn lock(&self) -> MutexGuard<'_, State<J, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn hand_in(&self, state: &mut State<J, T>, done: Done<J, T>) {
        state.under_way.retain(|place| *place != done.place);
        if self.over.load(Ordering::Relaxed) {
            return;
        }
        state.waiting.extend(done.jobs);
        state.early.insert(done.place, done.walked);
        while let Some(walked) = state.in_order() {
            state.whole.append(walked);
            if self.caps.passed(&state.whole) {
                state.whole.capped = true;
                self.end();
                return;
            }
        }
    }
}

impl<J, T> State<J, T> {
    /// The first job, unless so much is done before it already that it is likely for nothing.
    fn take(&mut self, caps: &Caps) -> Option<(Place, J)> {
        let (place, _) = self.waiting.first_key_value()?;
        if self.under_way.iter().any(|other| other < place) {
            let (mut count, mut weight) = (0, 0);
            for (_, walked) in self.early.range(..place) {
                count += 1;
                weight += walked.weight;
            }
            if count >= MAX_EARLY || weight > caps.weight {
                return None;
            }
        }
        let (place, job) = self.waiting.pop_first()?;
        self.under_way.push(place.clone());
        Some((place, job))
    }

    /// What is done and has nothing before it that is not.
    fn in_order(&mut self) -> Option<Walked<T>> {
        let frontier = self.under_way.iter().chain(self.waiting.first_key_value().map(|(place, _)| place)).min();
        let first = self.early.first_entry()?;
        frontier.is_none_or(|frontier| first.key() < frontier).then(|| first.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks nobody.
    struct Open;

    impl Gate for Open {
        fn permit(&self, _: &super::super::SandboxPath, _: super::super::Access) -> Result<(), ToolError> {
            Ok(())
        }

        fn visible(&self, _: &super::super::SandboxPath, _: super::super::Access) -> bool {
            true
        }

        fn checkpoint(&self) -> Result<(), ToolError> {
            Ok(())
        }

        fn poll(&self) -> Result<(), ToolError> {
            Ok(())
        }
    }

    const NONE: Caps = Caps { entries: u64::MAX, bytes: u64::MAX, weight: usize::MAX };

    fn item(place: &Place) -> Walked<Place> {
        Walked { items: vec![place.clone()], weight: 1, ..Walked::default() }
    }

    /// Each name of up to three letters makes those below it; some take longer than others.
    fn run(caps: Caps, threads: usize) -> Walked<Place> {
        let order = Order::new(caps, Place::beneath(b""), Vec::new());
        let work = || {
            let _attendance = order.attend();
            let mut done = None;
            while let Some((place, name)) = order.next(done.take(), &Open) {
                if name.len() % 3 == 1 && name.last() == Some(&b'a') {
                    std::thread::sleep(Duration::from_micros(300));
                }
                let below = (b'a'..=b'h')
                    .map(|letter| [name.as_slice(), b"/", &[letter]].concat().split_off(usize::from(name.is_empty())));
                let jobs: Vec<_> =
                    below.filter(|below| below.len() < 6).map(|below| (Place::beneath(&below), below)).collect();
                done = Some(Done { walked: item(&place), place, jobs });
            }
        };
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        order.into_whole().unwrap()
    }

    #[test]
    fn what_threads_give_is_in_order_and_whole() {
        let alone = run(NONE, 1);
        assert_eq!((alone.items.len(), alone.capped), (1 + 8 + 64 + 512, false));
        assert!(alone.items.is_sorted());
        assert_eq!(run(NONE, 5).items, alone.items);
    }

    #[test]
    fn a_cap_keeps_the_first_in_order_whatever_was_done_first() {
        let alone = run(NONE, 1);
        for weight in [0, 1, 100] {
            let capped = run(Caps { weight, ..NONE }, 5);
            assert_eq!((&*capped.items, capped.capped), (&alone.items[..=weight], true));
        }
    }

    #[test]
    fn a_folder_sorts_before_its_content_and_that_before_the_next_name() {
        let sorted = [Place::of(b"a"), Place::beneath(b"a"), Place::of(b"a/b"), Place::of(b"a\x01"), Place::of(b"a.b")];
        assert!(sorted.is_sorted());
        assert!(Place::beneath(b"") < Place::of(b"\x01"));
    }

    #[test]
    fn a_panic_ends_the_work_of_all() {
        let order: Order<(), ()> = Order::new(NONE, Place::beneath(b""), ());
        let taken = std::sync::Barrier::new(2);
        let caught = std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _attendance = order.attend();
                let _job = order.next(None, &Open).unwrap();
                taken.wait();
                std::thread::sleep(Duration::from_millis(5));
                std::panic::resume_unwind(Box::new("as a defect would"));
            });
            taken.wait();
            scope.spawn(|| assert_eq!(order.next(None, &Open), None));
            panics.join().is_err()
        });
        assert!(caught);
    }
}
