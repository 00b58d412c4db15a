//! Under how many names one object is seen: mounts of the sandbox that nest, and the kernel's own bind mounts below them.

use super::mount::Mount;
use super::path::components;

/// A name as components.
type Name = Vec<Vec<u8>>;

/// Where an object is stored: the file system, and the name in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    device: Vec<u8>,
    name: Name,
}

impl Place {
    /// What remains of the name below `top`, where it lies there.
    fn beneath(&self, top: &Self) -> Option<&[Vec<u8>]> {
        (self.device == top.device).then(|| self.name.strip_prefix(top.name.as_slice())).flatten()
    }
}

/// What the kernel has mounted where, oldest first.
#[derive(Debug)]
pub(crate) struct KernelMounts(Vec<(Name, Place)>);

impl KernelMounts {
    /// Those of this process. Where `/proc` is not there, one file system is assumed: bind mounts are not seen then.
    pub(crate) fn read() -> Self {
        Self::parse(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
    }

    /// A line is `id parent device root mount-point ...`, with blanks and backslashes in names as `\ooo`.
    fn parse(text: &[u8]) -> Self {
        let name = |field: &[u8]| components(&unescape(field)).map(<[u8]>::to_vec).collect::<Name>();
        let line = |line: &[u8]| {
            let mut fields = line.split(|b| *b == b' ').skip(2);
            let (device, root, point) = (fields.next()?, fields.next()?, fields.next()?);
            Some((name(point), Place { device: device.to_vec(), name: name(root) }))
        };
        Self(text.split(|b| *b == b'\n').filter_map(line).collect())
    }

    /// Where the object with this real host path is stored.
    pub(crate) fn place(&self, real: &[Vec<u8>]) -> Place {
        // The deepest mount point counts, and of those in one place the newest: the last of the longest.
        let over = self.0.iter().filter_map(|(point, place)| Some((point.len(), place, real.strip_prefix(&**point)?)));
        match over.max_by_key(|(depth, ..)| *depth) {
            Some((_, place, rest)) => Place { device: place.device.clone(), name: [&*place.name, rest].concat() },
            None => Place { device: Vec::new(), name: real.to_vec() },
        }
    }

    /// The parts that a directory is put together from: itself, and what is mounted below it.
    pub(crate) fn parts(&self, real: &[Vec<u8>]) -> Vec<Part> {
        let below = self.0.iter().filter_map(|(point, _)| {
            let name = point.strip_prefix(real)?;
            (!name.is_empty()).then(|| Part { name: name.to_vec(), place: self.place(point) })
        });
        std::iter::once(Part { name: Vec::new(), place: self.place(real) }).chain(below).collect()
    }
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        let code = octal.map(|digits| digits.iter().fold(0_u32, |code, digit| code * 8 + u32::from(digit - b'0')));
        if let Some(byte) = code.and_then(|code| u8::try_from(code).ok()) {
            out.push(byte);
            rest = after.get(3..).unwrap_or_default();
        } else {
            out.push(*first);
            rest = after;
        }
    }
    out
}

/// One part of a mount: the name beneath its root, and where what is seen there is stored.
#[derive(Debug)]
pub(crate) struct Part {
    name: Name,
    place: Place,
}

impl Part {
    /// The name beneath the mount's root of what is stored at `place`, where it lies in this part.
    pub(crate) fn name_of(&self, place: &Place) -> Option<Vec<u8>> {
        place.beneath(&self.place).map(|rest| [self.name.as_slice(), rest].concat().join(&b'/'))
    }

    /// The topmost name beneath the mount's root in this part under which everything is stored in `place`.
    pub(crate) fn name_within(&self, place: &Place) -> Option<Vec<u8>> {
        self.name_of(place).or_else(|| self.place.beneath(place).map(|_| self.name.join(&b'/')))
    }
}

/// How names of one mount become names of another that shares objects with it, or other names of the same mount.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) mount: usize,
    /// Removed from the front of a name here; a name without it has no other name there.
    pub(crate) strip: Vec<u8>,
    /// Put in front of it there.
    pub(crate) prepend: Vec<u8>,
}

/// Where names of `mounts[index]` have others. The run's own mounts are not reached through others and others not through
/// them: the runs directory is withheld.
pub(crate) fn overlaps(mounts: &[Mount], index: usize) -> Vec<Overlap> {
    let open = |mount: &&Mount| !mount.spec.private;
    let Some(this) = mounts.get(index).filter(open) else { return Vec::new() };
    let mut found = Vec::new();
    for (other_index, other) in mounts.iter().enumerate().filter(|(_, mount)| open(mount)) {
        for (mine, theirs) in this.parts.iter().flat_map(|mine| other.parts.iter().map(move |theirs| (mine, theirs))) {
            let (strip, prepend) = match (theirs.name_of(&mine.place), mine.name_of(&theirs.place)) {
                (Some(prepend), _) => (mine.name.join(&b'/'), prepend),
                (None, Some(strip)) => (strip, theirs.name.join(&b'/')),
                (None, None) => continue,
            };
            if other_index != index || strip != prepend {
                found.push(Overlap { mount: other_index, strip, prepend });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
        27 1 254:0 / / rw - ext4 /dev/vda rw\n\
        30 27 0:40 / /home/a/ws/tmp rw - tmpfs tmpfs rw\n\
        31 27 254:0 /home/a/ws/private /home/a/ws/b\\040c rw - ext4 /dev/vda rw\n\
        32 27 254:0 /home/a/ws /mnt/copy rw - ext4 /dev/vda rw\n\
        33 27 0:41 / /mnt/copy/over rw - tmpfs tmpfs rw\n\
        34 27 0:42 / /mnt/copy/over rw - tmpfs tmpfs rw\n";

    fn name(text: &str) -> Name {
        components(text.as_bytes()).map(<[u8]>::to_vec).collect()
    }

    fn place(device: &str, text: &str) -> Place {
        Place { device: device.into(), name: name(text) }
    }

    #[test]
    fn an_object_is_stored_where_the_deepest_and_newest_mount_says() {
        let mounts = KernelMounts::parse(TABLE);
        for (real, stored) in [
            ("/home/a/ws/x", place("254:0", "home/a/ws/x")),
            ("/home/a/ws/b c/k", place("254:0", "home/a/ws/private/k")),
            ("/home/a/ws/tmp/t", place("0:40", "t")),
            ("/mnt/copy/private/k", place("254:0", "home/a/ws/private/k")),
            ("/mnt/copy/over/z", place("0:42", "z")),
            ("/mnt/copying", place("254:0", "mnt/copying")),
        ] {
            assert_eq!(mounts.place(&name(real)), stored, "{real}");
        }
        assert_eq!(KernelMounts::parse(b"").place(&name("/a/b")), place("", "a/b"));
    }

    #[test]
    fn a_part_names_what_is_stored_in_it() {
        let mounts = KernelMounts::parse(TABLE);
        let parts = mounts.parts(&name("/home/a/ws"));
        let names: Vec<_> = parts.iter().map(|p| p.name_of(&mounts.place(&name("/mnt/copy/private/k")))).collect();
        assert_eq!(names, [Some(b"private/k".to_vec()), None, Some(b"b c/k".to_vec())]);
    }

    #[test]
    fn only_octal_escapes_are_read() {
        assert_eq!(unescape(b"a\\040b\\134\\9\\777\\1"), b"a b\\\\9\\777\\1");
    }
}
