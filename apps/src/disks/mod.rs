//! Block devices side by side (H9): remote memory, a disk, nbd.
//!
//! | module | |
//! |---|---|
//! | `bench` | what pages cost on a block device |
//! | `nbd` | a server of nbd whose blocks are in memory |

mod bench;
mod nbd;

pub(crate) use bench::{run as bench, Options as BenchOptions};
pub(crate) use nbd::{run as serve, Options as ServerOptions};
