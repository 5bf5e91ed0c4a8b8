//! What guests and peers can make a NIC keep: how much is used, and how much may be (X8).

/// One bounded container, or that of its kind in which most is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// What is kept. Behind `_of_process` or `_of_peer` stands a bound that each of them has:
    /// the use is that of the one that uses most.
    pub name: &'static str,
    /// How much is used.
    pub used: u64,
    /// How much may be.
    pub limit: u64,
}

impl Budget {
    /// A budget.
    pub(crate) fn new(name: &'static str, used: impl TryInto<u64>, limit: u32) -> Self {
        Budget {
            name,
            used: used.try_into().unwrap_or(u64::MAX),
            limit: limit.into(),
        }
    }

    /// That of the one of many that uses most.
    pub(crate) fn most<N: TryInto<u64>>(
        name: &'static str,
        used: impl Iterator<Item = N>,
        limit: u32,
    ) -> Self {
        let used = used.map(|used| used.try_into().unwrap_or(u64::MAX));
        Budget::new(name, used.max().unwrap_or(0), limit)
    }
}
