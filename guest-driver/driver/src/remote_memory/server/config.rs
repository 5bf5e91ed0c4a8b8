//! The configuration of a server.

use qnic_abi::Secret;

use crate::platform::NoMemory;

/// Most clients of a server; their index takes the low bits of a session.
pub const MAX_CLIENTS: usize = 64;
/// Most pages of a server: 1 TiB.
const MAX_PAGES: usize = 1 << 28;
/// Most answers that a client may have under way.
const MAX_WINDOW: u16 = 1024;

/// The parameters of a server.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Random number of this life of the server: no two lives have the same.
    pub incarnation: u64,
    /// The key that clients have to present.
    pub key: Secret,
    /// Pages that it gives to all clients together.
    pub pages: usize,
    /// Pages that it gives to one client.
    pub quota: usize,
    /// Clients that it takes, 1 to [`MAX_CLIENTS`].
    pub clients: usize,
    /// Requests that a client may have under way: as many as there are receive buffers for.
    pub window: u16,
    /// A client that is silent for this long loses its pages, all at once and for good, in nanoseconds.
    pub lease: u64,
    /// How often clients are told that it leaves, in nanoseconds.
    pub leave_interval: u64,
}

/// Which parameter is wrong, or what is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServerConfigError {
    /// The number of pages, or the quota.
    #[error("a server has 1 to {MAX_PAGES} pages, and a client no more of them than there are")]
    Pages,
    /// The number of clients, or their window.
    #[error("a server has 1 to {MAX_CLIENTS} clients, each with 1 to {MAX_WINDOW} requests")]
    Clients,
    /// No memory.
    #[error("out of memory")]
    NoMemory,
}

impl From<NoMemory> for ServerConfigError {
    fn from(_: NoMemory) -> Self {
        ServerConfigError::NoMemory
    }
}

impl Config {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The first wrong parameter.
    pub(super) fn check(&self) -> Result<(), ServerConfigError> {
        if !(1..=MAX_PAGES).contains(&self.pages) || !(1..=self.pages).contains(&self.quota) {
            Err(ServerConfigError::Pages)
        } else if !(1..=MAX_CLIENTS).contains(&self.clients)
            || !(1..=MAX_WINDOW).contains(&self.window)
        {
            Err(ServerConfigError::Clients)
        } else {
            Ok(())
        }
    }
}
