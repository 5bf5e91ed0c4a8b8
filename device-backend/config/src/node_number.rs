//! The number of a node as a file has it.

use qnic_limits::NodeId;
use serde::{Deserialize, Serialize};

/// A node as a file has it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "NodeId")]
pub(crate) struct NodeNumber(u16);
