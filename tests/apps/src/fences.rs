//! The page in which a process of a guest and a thread of its host try whether their
//! fences hold for each other: offsets of its words, each in a cache line of its own.

/// Round of the guest's process.
pub const MINE: usize = 0;
/// Turn of the host's thread.
pub const THEIRS: usize = 64;
/// Not zero once the host's thread runs.
pub const START: usize = 128;
/// Not zero once the guest's process has done all its rounds.
pub const END: usize = 192;
