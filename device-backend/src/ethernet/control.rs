//! The control queue, and the configuration space: a port with several pairs of queues has the one, each
//! port has the other.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use vhost_user_backend::{VringRwLock, VringT};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, VIRTIO_NET_ERR, VIRTIO_NET_OK,
    VIRTIO_NET_S_LINK_UP,
};
use virtio_queue::{DescriptorChain, QueueT};
use vm_memory::{GuestAddressSpace, GuestMemoryLoadGuard, GuestMemoryMmap};
use zerocopy::little_endian::U16;
use zerocopy::{Immutable, IntoBytes};

use super::{EthernetPort, Memory};

/// Most commands that are taken for one kick.
const MOST: usize = 64;

/// `virtio_net_config`, as far as features that are offered have it.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ConfigSpace {
    mac: [u8; 6],
    status: U16,
    most_pairs: U16,
    mtu: U16,
}

/// Bytes of the configuration space from an offset on; zeroes behind its end.
pub(super) fn config_space(port: &EthernetPort, offset: u32, size: u32) -> Vec<u8> {
    let space = ConfigSpace {
        mac: port.mac.0,
        status: (VIRTIO_NET_S_LINK_UP as u16).into(),
        most_pairs: (port.pairs as u16).into(),
        mtu: port.mtu.into(),
    };
    let bytes = space.as_bytes().iter().copied().chain(std::iter::repeat(0));
    bytes.skip(offset as usize).take(size as usize).collect()
}

/// Answers the commands of a driver. `in_use` is how many pairs of queues it uses, before it has the answer.
pub(super) fn serve(
    port: &EthernetPort,
    memory: &Memory,
    vring: &VringRwLock<Memory>,
    in_use: &AtomicUsize,
) {
    let memory = memory.memory();
    let mut state = vring.get_mut();
    if !state.is_enabled() || !state.get_queue().ready() {
        return;
    }
    for _ in 0..MOST {
        let queue = state.get_queue_mut();
        let Some(chain) = queue.pop_descriptor_chain(memory.clone()) else {
            break;
        };
        let head = chain.head_index();
        let wanted = wanted_pairs(&memory, &chain).filter(|it| (1..=port.pairs).contains(it));
        let answer = match wanted {
            Some(pairs) => {
                in_use.store(pairs, Ordering::Relaxed);
                VIRTIO_NET_OK
            }
            None => VIRTIO_NET_ERR,
        };
        let written = match chain.writer(&memory) {
            Ok(mut writer) => writer.write(&[answer as u8]).unwrap_or(0),
            Err(_) => 0,
        };
        let _ = state
            .get_queue_mut()
            .add_used(&*memory, head, written as u32);
    }
    let _ = state.get_queue_mut().enable_notification(&*memory);
    let _ = state.signal_used_queue();
}

/// What a command asks for, if it is the one that is known.
fn wanted_pairs(
    memory: &GuestMemoryLoadGuard<GuestMemoryMmap>,
    chain: &DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>,
) -> Option<usize> {
    let mut command = [0; 4];
    let mut reader = chain.clone().reader(memory).ok()?;
    reader.read_exact(&mut command).ok()?;
    let [class, kind, low, high] = command;
    let is_known = u32::from(class) == VIRTIO_NET_CTRL_MQ
        && u32::from(kind) == VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET;
    is_known.then_some(u16::from_le_bytes([low, high]).into())
}
