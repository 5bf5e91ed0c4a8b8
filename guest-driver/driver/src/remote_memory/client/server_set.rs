//! Sets of servers: one bit for each.

/// Most servers of a volume.
pub const MAX_SERVERS: usize = 16;

/// Index of a server in the client's list.
pub(super) type ServerIndex = u8;

/// Some of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ServerSet(u16);

impl ServerSet {
    /// One server.
    pub(super) fn only(server: ServerIndex) -> Self {
        ServerSet(1 << server)
    }

    /// Returns true if the server is in it.
    pub(super) fn has(self, server: ServerIndex) -> bool {
        self.0 >> server & 1 == 1
    }

    /// Returns true if there is none.
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many there are.
    pub(super) fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Adds a server.
    pub(super) fn insert(&mut self, server: ServerIndex) {
        self.0 |= 1 << server;
    }

    /// Those that are in both.
    pub(super) fn and(self, other: Self) -> Self {
        ServerSet(self.0 & other.0)
    }

    /// Those that are in one of them at least.
    pub(super) fn or(self, other: Self) -> Self {
        ServerSet(self.0 | other.0)
    }

    /// Those that are not in the other one.
    pub(super) fn without(self, other: Self) -> Self {
        ServerSet(self.0 & !other.0)
    }

    /// A number for each set.
    pub(super) fn index(self) -> usize {
        self.0.into()
    }

    /// The set of a number.
    pub(super) fn from_index(index: u16) -> Self {
        ServerSet(index)
    }

    /// The subset of `all` behind this one, which is one and not empty; the last is empty.
    pub(super) fn next_subset_of(self, all: Self) -> Self {
        ServerSet((self.0 - 1) & all.0)
    }

    /// All of them, in ascending order.
    pub(super) fn iter(self) -> impl Iterator<Item = ServerIndex> {
        (0..MAX_SERVERS as u8).filter(move |server| self.has(*server))
    }

    /// The first one after `server`, around the end.
    pub(super) fn after(self, server: ServerIndex) -> Option<ServerIndex> {
        let next = self.iter().find(|other| *other > server);
        next.or_else(|| self.iter().next())
    }
}

impl FromIterator<ServerIndex> for ServerSet {
    fn from_iter<I: IntoIterator<Item = ServerIndex>>(servers: I) -> Self {
        let bits = servers.into_iter().map(|server| 1 << server);
        ServerSet(bits.fold(0, |set, bit: u16| set | bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_sets() {
        let mut set = ServerSet::only(3);
        set.insert(15);
        assert_eq!(set.iter().collect::<alloc::vec::Vec<_>>(), [3, 15]);
        assert_eq!((set.after(3), set.after(15)), (Some(15), Some(3)));
        assert_eq!(ServerSet::default().after(3), None);
        let other = ServerSet::only(15);
        assert_eq!(set.without(other), ServerSet::only(3));
        assert_eq!(set.and(other), other);
        assert_eq!(ServerSet::only(3).or(other), set);
        assert_eq!((set.count(), other.count()), (2, 1));
        assert!(!set.is_empty() && other.without(set).is_empty());
        let mut subsets = alloc::vec![set];
        while let Some(last) = subsets.last().filter(|last| !last.is_empty()) {
            subsets.push(last.next_subset_of(set));
        }
        let indices: alloc::vec::Vec<_> = subsets.iter().map(|it| it.index()).collect();
        assert_eq!(indices, [1 << 15 | 1 << 3, 1 << 15, 1 << 3, 0]);
        assert_eq!(ServerSet::from_index(1 << 3), ServerSet::only(3));
    }
}
