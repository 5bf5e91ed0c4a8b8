//! Volumes in the memory of other nodes, and memory of this node for others (H9).

use alloc::sync::Arc;

use qnic_abi::remote_memory::{FIRST_CLIENT_PORT, SERVER_PORT};
use qnic_abi::volume::{AttachVolume, ServeMemory};
use qnic_abi::Status;

use super::lifecycle::Driver;
use crate::error::CallError;
use crate::memory::MemoryManager;
use crate::remote_memory::calls::{attach_status, client_config, serve_status, server_config};
use crate::remote_memory::{
    AttachError, ClientConfig, Memory, ServeError, ServerConfig, Volume, VolumeUser,
};

impl<P: MemoryManager> Driver<P> {
    /// Attaches a volume over a datagram port; waits until enough servers have given memory.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_volume(
        &self,
        port: u16,
        config: ClientConfig,
        user: Arc<dyn VolumeUser<P>>,
    ) -> Result<Volume<P>, AttachError> {
        Volume::attach(self.platform(), config, user, |config, upper| {
            self.bind_datagrams(port, config, upper)
        })
    }

    /// Offers memory to other nodes over a datagram port. All of it is allocated at once.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn serve_memory(&self, port: u16, config: ServerConfig) -> Result<Memory<P>, ServeError> {
        Memory::serve(self.platform(), config, |config, upper| {
            self.bind_datagrams(port, config, upper)
        })
    }

    /// Attaches the volume that has place `slot` on this NIC. Returns `Ok(None)` if that was refused;
    /// the call's status has the reason.
    ///
    /// # Errors
    /// `Invalid`, `NoDevice`, `NoMemory`, `Interrupted`.
    pub fn open_volume(
        &self,
        slot: u16,
        call: &mut AttachVolume,
        user: Arc<dyn VolumeUser<P>>,
    ) -> Result<Option<Volume<P>>, CallError> {
        let platform = self.platform();
        let config = client_config(call, platform.random(), platform.random())?;
        let (status, volume) = match self.attach_volume(FIRST_CLIENT_PORT + slot, config, user) {
            Ok(volume) => (Status::Ok, Some(volume)),
            Err(error) => (attach_status(error, call)?, None),
        };
        call.status = status.code().into();
        Ok(volume)
    }

    /// Offers memory to other nodes. Returns `Ok(None)` if that was refused; the call's status has the
    /// reason.
    ///
    /// # Errors
    /// `Invalid`, `NoDevice`, `NoMemory`.
    pub fn open_memory(&self, call: &mut ServeMemory) -> Result<Option<Memory<P>>, CallError> {
        let config = server_config(call, self.platform().random())?;
        let (status, memory) = match self.serve_memory(SERVER_PORT, config) {
            Ok(memory) => (Status::Ok, Some(memory)),
            Err(error) => (serve_status(error)?, None),
        };
        call.status = status.code().into();
        Ok(memory)
    }
}
