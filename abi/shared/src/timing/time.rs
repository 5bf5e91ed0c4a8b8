//! Points in time.

/// A point in time, in nanoseconds since an epoch that the caller chooses. It never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// This many nanoseconds later; stops at the end of time.
    #[must_use]
    pub const fn after(self, nanoseconds: u64) -> Self {
        Time(self.0.saturating_add(nanoseconds))
    }
}
