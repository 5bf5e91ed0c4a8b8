//! What stands on block devices (H9): remote memory, a disk, nbd.
//!
//! | module | |
//! |---|---|
//! | `bench` | what pages cost on a block device |
//! | `nbd` | a server of nbd whose blocks are in memory |
//! | `verify` | pages that are written and compared, on a device, in a file or swapped out |

mod bench;
mod nbd;
mod verify;

pub(crate) use bench::{run as bench, Options as BenchOptions};
pub(crate) use nbd::{run as serve, Options as ServerOptions};
pub(crate) use verify::{run as verify, Options as VerifyOptions};
