//! What drives the NIC of a node (X11).

use serde::{Deserialize, Serialize};

/// What drives the NIC of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NicDriver {
    /// `qnic.ko`, for all processes of the guest.
    #[default]
    Module,
    /// One process of the guest, through VFIO: the machine has an IOMMU, and the guest no module of
    /// ours.
    Vfio,
}

impl NicDriver {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
