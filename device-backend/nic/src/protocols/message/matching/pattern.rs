//! What a receive takes: the source and the bits of the tag that it compares.

/// Which messages a receive or probe takes.
///
/// Two patterns are equal if they take the same messages: bits of the tag that are ignored
/// are zero in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pattern<S> {
    source: Option<S>,
    tag: u64,
    ignore: u64,
}

impl<S: Copy + Eq> Pattern<S> {
    /// Takes messages of a source, or of any (`None`: ANY_PROC), whose tag differs at most in
    /// the bits of `ignore` (all of them: ANY_TAG).
    pub fn new(source: Option<S>, tag: u64, ignore: u64) -> Self {
        let tag = tag & !ignore;
        Pattern {
            source,
            tag,
            ignore,
        }
    }

    /// Takes messages of one source with one tag.
    pub fn exact(source: S, tag: u64) -> Self {
        Self::new(Some(source), tag, 0)
    }

    /// Takes messages of any source with one tag.
    pub fn any_source(tag: u64) -> Self {
        Self::new(None, tag, 0)
    }

    /// Takes messages of one source with any tag.
    pub fn any_tag(source: S) -> Self {
        Self::new(Some(source), 0, u64::MAX)
    }

    /// Takes all messages.
    pub fn any() -> Self {
        Self::new(None, 0, u64::MAX)
    }

    /// The source, unless any will do.
    pub fn source(&self) -> Option<S> {
        self.source
    }

    /// The tag; bits that are ignored are zero.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// The bits of the tag that are ignored.
    pub fn ignore(&self) -> u64 {
        self.ignore
    }

    /// Returns true if it takes a message.
    pub fn matches(&self, source: S, tag: u64) -> bool {
        self.source.is_none_or(|own| own == source) && tag & !self.ignore == self.tag
    }

    pub(super) fn mask(&self) -> Mask {
        Mask {
            any_source: self.source.is_none(),
            ignore: self.ignore,
        }
    }
}

/// What a pattern does not compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mask {
    any_source: bool,
    ignore: u64,
}

impl Mask {
    /// The one pattern with this mask that takes a message.
    pub(super) fn pattern_of<S: Copy + Eq>(self, source: S, tag: u64) -> Pattern<S> {
        let source = (!self.any_source).then_some(source);
        Pattern::new(source, tag, self.ignore)
    }
}

/// The masks of posted receives, and how many receives have each.
#[derive(Debug, Default)]
pub(super) struct Masks(Vec<(Mask, u32)>);

impl Masks {
    /// The masks; their order says nothing.
    pub(super) fn iter(&self) -> impl Iterator<Item = Mask> + '_ {
        self.0.iter().map(|(mask, _)| *mask)
    }

    /// Counts a receive; returns false if its mask would be one more than `most`.
    #[must_use]
    pub(super) fn add(&mut self, mask: Mask, most: u32) -> bool {
        if let Some((_, count)) = self.0.iter_mut().find(|(own, _)| *own == mask) {
            *count += 1;
            return true;
        }
        let has_room = self.0.len() < most as usize;
        if has_room {
            self.0.push((mask, 1));
        }
        has_room
    }

    /// Counts a receive less that was counted.
    pub(super) fn remove(&mut self, mask: Mask) {
        if let Some(index) = self.0.iter().position(|(own, _)| *own == mask) {
            self.0[index].1 -= 1;
            if self.0[index].1 == 0 {
                self.0.swap_remove(index);
            }
        }
    }
}
