//! Memory that processes share: buffers, exported and imported segments (N2, N3).

pub(crate) mod buffer;
pub(crate) mod map;
pub(crate) mod segment;

pub use buffer::Buffer;
pub use segment::{Part, RemoteSegment, Segment};
