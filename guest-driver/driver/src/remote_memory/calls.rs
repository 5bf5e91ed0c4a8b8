//! Remote memory as calls of the character device ([`qnic_abi::volume`]): converts the numbers of a
//! process to configurations, and the reports of client and server to numbers.

use alloc::vec::Vec;

use qnic_abi::remote_memory::SERVER_PORT;
use qnic_abi::volume::{
    self as abi, AttachVolume, LeaveMemory, MemoryCounters, MemoryInfo, ServeMemory,
    VolumeCounters, VolumeInfo, VolumeLatency, VolumeServer, ATTACH_THIN, LEAVE_NOW,
    MAX_PAGES_UNDER_WAY, MEMORY_LEAVING, MEMORY_SERVED, SERVER_FULL, SERVER_LEAVING, VOLUME_ACTIVE,
    VOLUME_DEGRADED, VOLUME_FULL, VOLUME_REPAIRS, VOLUME_TAKEN_BACK, VOLUME_THIN,
};
use qnic_abi::{NodeId, Status};

use super::{
    AttachError, AttachRefusal, ClientConfig, ClientState, ConfigError, Limits, Memory, ServeError,
    ServerConfig, ServerConfigError, ServerState, Volume, LATENCY_CLASSES, MAX_SERVERS,
};
use crate::datagram::{Address, BindError};
use crate::error::CallError;
use crate::platform::Platform;

const MS: u64 = 1_000_000;
/// Copies for repair that are under way at the same time. On a wire that loses frames most of them wait
/// for retransmissions: with fewer, repair would take minutes.
const COPIES: usize = 64;
/// Requests that a server has receive buffers for; its clients share them, each within bounds.
const WINDOWS: usize = 1024;
const LEAST_WINDOW: usize = 64;
const MOST_WINDOW: usize = 512;
/// Clients of a server, by default.
const CLIENTS: usize = 16;
/// How long a client may be silent, by default.
const LEASE_MS: u64 = 300_000;
/// How often clients are told that a server leaves.
const LEAVE_INTERVAL: u64 = 100 * MS;

const _: () = {
    assert!(abi::MAX_SERVERS == MAX_SERVERS);
    assert!(abi::LATENCY_CLASSES == LATENCY_CLASSES);
};

/// The client configuration that a call asks for, if it is legal.
pub(crate) fn client_config(
    call: &AttachVolume,
    volume: u64,
    client: u64,
) -> Result<ClientConfig, CallError> {
    let count = usize::from(call.server_count.get());
    let flags = call.flags.get();
    let reserved = call.reserved0.get() != 0 || flags & !ATTACH_THIN != 0;
    let listed = call.servers.get(..count).ok_or(CallError::Invalid)?;
    if reserved || call.servers[count..].iter().any(|node| node.get() != 0) {
        return Err(CallError::Invalid);
    }
    let mut servers = Vec::new();
    servers
        .try_reserve_exact(count)
        .map_err(|_| CallError::NoMemory)?;
    servers.extend(listed.iter().map(|node| Address {
        node: NodeId(node.get()),
        port: SERVER_PORT,
    }));
    let mut limits = Limits::default();
    if call.request_timeout_ms.get() != 0 {
        limits.request_timeout = u64::from(call.request_timeout_ms.get()) * MS;
    }
    Ok(ClientConfig {
        volume,
        client: client.max(1),
        key: call.key,
        blocks: call.blocks.get(),
        replicas: call.replicas.get().into(),
        thin: flags & ATTACH_THIN != 0,
        servers,
        requests: MAX_PAGES_UNDER_WAY,
        copies: COPIES,
        limits,
    })
}

/// The server configuration that a call asks for, if it is legal.
pub(crate) fn server_config(
    call: &ServeMemory,
    incarnation: u64,
) -> Result<ServerConfig, CallError> {
    if call.reserved.get() != 0 {
        return Err(CallError::Invalid);
    }
    let or = |value: u64, otherwise: u64| if value == 0 { otherwise } else { value };
    let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let pages = call.pages.get();
    let clients = size(or(call.clients.get().into(), CLIENTS as u64));
    let window = (WINDOWS / clients.max(1)).clamp(LEAST_WINDOW, MOST_WINDOW);
    Ok(ServerConfig {
        incarnation,
        key: call.key,
        pages: size(pages),
        quota: size(or(call.quota.get(), pages)),
        clients,
        window: window as u16,
        lease: or(call.lease_ms.get().into(), LEASE_MS) * MS,
        leave_interval: LEAVE_INTERVAL,
    })
}

/// The status of a port that is not bound.
fn bind_status(error: BindError) -> Result<Status, CallError> {
    match error {
        BindError::InUse => Ok(Status::PortInUse),
        BindError::Exhausted | BindError::Invalid => Ok(Status::Exhausted),
        BindError::NoDevice => Err(CallError::NoDevice),
        BindError::NoMemory => Err(CallError::NoMemory),
    }
}

/// The status of a volume that is not attached; a server's refusal goes into the call.
pub(crate) fn attach_status(
    error: AttachError,
    call: &mut AttachVolume,
) -> Result<Status, CallError> {
    match error {
        AttachError::Config(ConfigError::NoMemory) => Err(CallError::NoMemory),
        AttachError::Config(_) => Ok(Status::BadLength),
        AttachError::Bind(error) => bind_status(error),
        AttachError::Refused(refusal) => {
            if let Some(AttachRefusal {
                server,
                reason,
                room,
            }) = refusal
            {
                call.reason = (reason as u16).into();
                call.room = room.into();
                call.volume = u32::from(server.node.0).into();
            }
            Ok(Status::TimedOut)
        }
        AttachError::Interrupted => Err(CallError::Interrupted),
    }
}

/// The status of memory that is not served.
pub(crate) fn serve_status(error: ServeError) -> Result<Status, CallError> {
    match error {
        ServeError::Config(ServerConfigError::NoMemory) => Err(CallError::NoMemory),
        ServeError::Config(_) => Ok(Status::BadLength),
        ServeError::Bind(error) => bind_status(error),
    }
}

/// Counters of a state machine as those of a call, with the same names.
macro_rules! copied_counters {
    ($type:ident { $($own:ident: $value:expr),* }, $from:ident: $($name:ident),*) => {
        $type { $($name: $from.$name.into(),)* $($own: $value,)* }
    };
}

impl<P: Platform> Volume<P> {
    /// Fills in the state of the volume.
    pub fn info(&self, call: &mut VolumeInfo) {
        let status = self.status();
        let (counters, repair) = (status.counters, status.repair);
        let flags = [
            (status.state == ClientState::Active, VOLUME_ACTIVE),
            (repair.running, VOLUME_REPAIRS),
            (self.is_thin(), VOLUME_THIN),
            (status.degraded > 0, VOLUME_DEGRADED),
            (status.full, VOLUME_FULL),
            (status.taken_back, VOLUME_TAKEN_BACK),
        ];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
        let flags: u32 = flags.map(|(_, flag)| flag).sum();
        *call = VolumeInfo {
            status: Status::Ok.code().into(),
            volume: call.volume,
            flags: flags.into(),
            replicas: (self.replicas() as u16).into(),
            server_count: (self.servers() as u16).into(),
            blocks: self.blocks().into(),
            repair_position: repair.position.into(),
            missing: repair.missing.into(),
            lost: repair.lost.into(),
            degraded: status.degraded.into(),
            request_timeout_ms: ((self.request_timeout() / MS) as u32).into(),
            reserved: 0.into(),
            counters: copied_counters!(
                VolumeCounters {
                    repaired: counters.copied.into(),
                    pages_copied: status.pages_copied.into()
                },
                counters: reads, writes, failed, timed_out, retransmissions, stale_answers,
                    bad_answers, foreign, attached, silences, returned, lost_servers, full,
                    degraded
            ),
        };
    }

    /// Fills in the state of one of its servers.
    pub fn server_info(&self, call: &mut VolumeServer) {
        let Some(server) = self.server(call.server.get().into()) else {
            call.status = Status::NoSuchNode.code().into();
            return;
        };
        let state = match server.state {
            ServerState::Detached => abi::ServerState::Detached,
            ServerState::Live => abi::ServerState::Live,
            ServerState::Silent => abi::ServerState::Silent,
            ServerState::Dismissed => abi::ServerState::Dismissed,
            ServerState::Gone => abi::ServerState::Gone,
        };
        call.status = Status::Ok.code().into();
        call.node = server.address.node.0.into();
        call.state = (state as u16).into();
        let leaving = u16::from(server.leaving) * SERVER_LEAVING;
        let full = u16::from(server.full) * SERVER_FULL;
        call.flags = (leaving | full).into();
        call.pages = server.pages.into();
        call.granted = server.granted.into();
        call.reserved = server.reserved.into();
        call.lease_ms = server.lease_ms.into();
        call.round_trip_ns = server.round_trip.into();
    }

    /// Fills in the latencies of requests.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn latency(&self, call: &mut VolumeLatency) -> Result<(), CallError> {
        let status = self.status();
        let histogram = match call.writes.get() {
            0 => status.reads,
            1 => status.writes,
            _ => return Err(CallError::Invalid),
        };
        call.status = Status::Ok.code().into();
        call.counts = histogram.counts().map(Into::into);
        Ok(())
    }
}

impl<P: Platform> Memory<P> {
    /// Leaves as the call says. Returns true if the memory can be dropped: clients do not need it any
    /// more, or the call does not care.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn leave_call(&self, call: &mut LeaveMemory) -> Result<bool, CallError> {
        let flags = call.flags.get();
        if flags & !LEAVE_NOW != 0 || call.reserved.get() != 0 {
            return Err(CallError::Invalid);
        }
        let left = match flags == LEAVE_NOW {
            true => {
                self.take_back();
                true
            }
            false => self.leave(u64::from(call.timeout_ms.get()) * MS),
        };
        let status = if left { Status::Ok } else { Status::TimedOut };
        call.status = status.code().into();
        Ok(left)
    }

    /// Fills in the state of the memory.
    pub fn info(&self, call: &mut MemoryInfo) {
        let status = self.status();
        let counters = status.counters;
        let leaving = u32::from(status.leaving) * MEMORY_LEAVING;
        *call = MemoryInfo {
            status: Status::Ok.code().into(),
            flags: (MEMORY_SERVED | leaving).into(),
            pages: (status.pages as u64).into(),
            used: (status.used as u64).into(),
            clients: (status.clients as u64).into(),
            counters: copied_counters!(
                MemoryCounters {},
                counters: reads, writes, stale_writes, refused, dropped, malformed, expired
            ),
            committed: (status.committed as u64).into(),
            lease_ms: (status.lease / MS).into(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::Secret;

    fn attach() -> AttachVolume {
        let mut call = AttachVolume {
            blocks: 100.into(),
            replicas: 2.into(),
            server_count: 3.into(),
            key: Secret([7; 16]),
            ..AttachVolume::default()
        };
        for (node, place) in (1u16..=3).zip(&mut call.servers) {
            *place = node.into();
        }
        call
    }

    #[test]
    fn a_volume_is_what_the_call_says() {
        let config = client_config(&attach(), 5, 0).unwrap();
        let nodes: Vec<_> = config.servers.iter().map(|it| it.node.0).collect();
        assert_eq!(nodes, [1, 2, 3]);
        assert!(config.servers.iter().all(|it| it.port == SERVER_PORT));
        assert_eq!((config.blocks, config.replicas), (100, 2));
        assert_eq!((config.volume, config.client), (5, 1));
        let usual = Limits::default().request_timeout;
        assert_eq!(config.limits.request_timeout, usual);
        let mut call = attach();
        call.request_timeout_ms = 300.into();
        let config = client_config(&call, 5, 9).unwrap();
        assert_eq!(config.limits.request_timeout, 300 * MS);
    }

    #[test]
    fn lists_that_lie_about_their_length_are_refused() {
        let mut call = attach();
        call.server_count = 17.into();
        assert_eq!(client_config(&call, 5, 9).err(), Some(CallError::Invalid));
        call.server_count = 2.into();
        assert_eq!(client_config(&call, 5, 9).err(), Some(CallError::Invalid));
        let mut call = attach();
        call.flags = 2.into();
        assert_eq!(client_config(&call, 5, 9).err(), Some(CallError::Invalid));
    }

    #[test]
    fn zeros_of_a_server_have_usual_values() {
        let call = ServeMemory {
            pages: 64.into(),
            ..ServeMemory::default()
        };
        let config = server_config(&call, 3).unwrap();
        assert_eq!((config.pages, config.quota), (64, 64));
        assert_eq!((config.clients, config.lease), (CLIENTS, LEASE_MS * MS));
        assert_eq!(config.window, 64);
        let call = ServeMemory {
            quota: 8.into(),
            clients: 2.into(),
            lease_ms: 10.into(),
            ..call
        };
        let config = server_config(&call, 3).unwrap();
        assert_eq!((config.quota, config.clients), (8, 2));
        assert_eq!(config.window, 512, "two have more than sixteen");
        assert_eq!(config.lease, 10 * MS);
    }
}
