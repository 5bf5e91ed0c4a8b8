//! How to boot a cluster.

use std::sync::Arc;
use std::time::Duration;

use qnic_images::{Progress, Silent};

use crate::manifest::Mode;
use crate::programs::{Program, APP};
use crate::state::Runtime;
use crate::{Cancel, Result};

/// How to boot.
#[derive(Clone)]
pub struct BootOptions {
    /// What ends the cluster.
    pub mode: Mode,
    /// Where its state goes.
    pub runtime: Runtime,
    /// Ends the boot, and later waits of the cluster, early.
    pub cancel: Option<Cancel>,
    /// What is told of progress.
    pub progress: Arc<dyn Progress>,
    /// Time for each guest to get ready once its QEMU has started; those of disk images have four times as
    /// much.
    pub ready_limit: Duration,
    /// Command in front of each device process, which must become that process, such as
    /// `ip netns exec x`; empty: none.
    pub device_prefix: Vec<String>,
    /// Nodes are processes of this machine instead of guests (X2).
    pub host: bool,
    /// The program that guests with a NIC have as [`APP_PATH`](crate::APP_PATH).
    pub app: Program<'static>,
}

impl BootOptions {
    /// In the environment's runtime directory, silent, with [`APP`] in the guests, which have three
    /// minutes to get ready.
    ///
    /// # Errors
    /// As [`Runtime::from_env`].
    pub fn new(mode: Mode) -> Result<Self> {
        Ok(Self {
            mode,
            runtime: Runtime::from_env()?,
            cancel: None,
            progress: Arc::new(Silent),
            ready_limit: Duration::from_secs(180),
            device_prefix: Vec::new(),
            host: false,
            app: APP,
        })
    }
}
