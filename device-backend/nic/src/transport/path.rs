//! What the routes to peers are like: told by the wire, and told to the driver (U8).

use qnic_abi::control::{PathInfo, PATH_LOSSLESS};
use qnic_abi::{NodeId, Status};

use super::Transport;
use crate::env::Wire;

impl Transport {
    /// Asks the wire how long frames to each peer may be from now on.
    #[cold]
    pub(crate) fn update_paths<M, W: Wire<M>>(&mut self, wire: &W) {
        for index in self.peers.all() {
            let peer = &mut self.peers[index];
            if let Some(path) = wire.path(peer.node).filter(|_| peer.has_path) {
                peer.set_max_payload(path.max_payload);
            }
        }
    }

    /// What the route to a node is like.
    ///
    /// # Errors
    /// `NoSuchNode` without a session in which frames can be sent.
    pub(crate) fn path_info(&self, node: NodeId) -> Result<PathInfo, Status> {
        let index = self.find(node).ok_or(Status::NoSuchNode)?;
        let peer = &self.peers[index];
        if !peer.is_ready() {
            return Err(Status::NoSuchNode);
        }
        let lossless = u32::from(peer.is_lossless());
        Ok(PathInfo {
            max_payload: peer.max_payload.into(),
            window: peer.send.granted().into(),
            round_trip: peer.round_trip.smoothed().into(),
            flags: (lossless * PATH_LOSSLESS).into(),
            reserved: 0.into(),
        })
    }
}
