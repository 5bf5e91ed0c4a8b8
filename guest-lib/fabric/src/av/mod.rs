//! `fid_av`: addresses, by number.
//!
//! Map and table are the same: `fi_addr_t` is the index in a table. An address has more bits than `fi_addr_t`, so
//! that of a map could not hold it.

mod set;

use std::collections::hash_map::Entry;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qnic::message::MessageEndpoint;
use qnic::{NodeId, Port};

use crate::address::{Address, Peer, BYTES};
use crate::errno::{status, Errno, Result, INVALID, UNSUPPORTED};
use crate::object::{self, Class, Parent};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{
    AvAttr, FidAv, Head, Ops, OpsAv, ADDR_UNSPEC, AV_TABLE, CLASS_AV, COMPLETION, FI_ETOOSMALL,
};

pub(crate) use set::{AvSet, COLLECTIVE};

/// What the provider keeps of an address vector.
#[derive(Debug)]
pub(crate) struct Av {
    table: Mutex<Table>,
    _domain: Parent,
}

#[derive(Debug, Default)]
struct Table {
    /// `None`: removed.
    addresses: Vec<Option<Address>>,
    /// The numbers of processes, by what a NIC says of a sender, in the order in which they were inserted. None is empty.
    numbers: foldhash::HashMap<(NodeId, Port), Vec<u64>>,
}

crate::object::object_class!(
    Av,
    FidAv,
    CLASS_AV,
    Ops {
        close,
        ..Ops::STUBS
    }
);

static AV_OPS: OpsAv = OpsAv {
    insert,
    insertsvc,
    remove,
    lookup,
    straddr,
    av_set: set::open,
    ..OpsAv::STUBS
};

/// Opens an address vector.
///
/// # Errors
/// [`UNSUPPORTED`]: one that processes share, or with contexts of receives. There is no place for it.
pub(crate) fn open(
    domain: Parent,
    attributes: In<AvAttr>,
    opened: Out<Fid<FidAv>>,
    context: Context,
) -> Result<()> {
    let attributes = attributes.get().ok_or(INVALID)?;
    if attributes.kind > AV_TABLE || attributes.flags != 0 {
        return Err(INVALID);
    }
    if !attributes.name.is_null() || attributes.rx_ctx_bits != 0 {
        return Err(UNSUPPORTED);
    }
    let head = Head {
        class: CLASS_AV,
        context,
        ops: Av::OPS,
    };
    let state = Av {
        table: Mutex::default(),
        _domain: domain,
    };
    object::open_at(opened, FidAv { head, ops: &AV_OPS }, Arc::new(state))
}

impl Av {
    /// The address of a number.
    pub(crate) fn address(&self, number: u64) -> Result<Address> {
        let table = self.lock();
        let found = usize::try_from(number)
            .ok()
            .and_then(|number| table.addresses.get(number));
        found.copied().flatten().ok_or(INVALID)
    }

    /// Numbers are below this.
    fn len(&self) -> u64 {
        self.lock().addresses.len() as u64
    }

    /// The number of a sender; [`ADDR_UNSPEC`] if it is not in the table.
    pub(crate) fn number(&self, peer: Peer) -> u64 {
        self.lock().number(peer).unwrap_or(ADDR_UNSPEC)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn insert(&mut self, address: Address) -> u64 {
        let number = self.addresses.len() as u64;
        self.addresses.push(Some(address));
        let name = (address.node, address.port);
        self.numbers.entry(name).or_default().push(number);
        number
    }

    /// The number of a process: of several, the first. One that tells no incarnation is none of this provider: it has
    /// the number that was inserted last for its port.
    fn number(&self, peer: Peer) -> Option<u64> {
        let numbers = self.numbers.get(&(peer.node, peer.port))?;
        let is_it = |number: &u64| {
            let address = self.addresses.get(*number as usize);
            address.is_some_and(|it| it.is_some_and(|it| it.incarnation == peer.incarnation))
        };
        match peer.incarnation {
            0 => numbers.last().copied(),
            _ => numbers.iter().copied().find(is_it),
        }
    }

    fn remove(&mut self, number: u64) -> Result<()> {
        let place = usize::try_from(number)
            .ok()
            .and_then(|it| self.addresses.get_mut(it))
            .ok_or(INVALID)?;
        let address = place.take().ok_or(INVALID)?;
        if let Entry::Occupied(mut numbers) = self.numbers.entry((address.node, address.port)) {
            numbers.get_mut().retain(|it| *it != number);
            if numbers.get().is_empty() {
                numbers.remove();
            }
        }
        Ok(())
    }
}

extern "C" fn close(fid: Fid<Head>) -> c_int {
    status(object::close::<Av>(fid, object::unused))
}

/// Inserts addresses. Those that are none get [`ADDR_UNSPEC`] as number.
extern "C" fn insert(
    av: Fid<FidAv>,
    addresses: In<c_void>,
    number: usize,
    numbers: Out<u64>,
    flags: u64,
    _errors: Out<c_int>,
) -> c_int {
    let insert = || {
        let av = object::state::<Av, _>(av)?;
        if flags & COMPLETION != 0 {
            // As an event: an address vector has no event queue.
            return Err(crate::errno::NO_EQ);
        }
        let length = number.checked_mul(BYTES).ok_or(INVALID)?;
        let bytes = addresses.bytes(length).ok_or(INVALID)?;
        let mut table = av.lock();
        let mut inserted = 0;
        for (index, bytes) in bytes.chunks_exact(BYTES).enumerate() {
            let address = Address::from_bytes(bytes);
            let address = address.filter(|it| MessageEndpoint::new(it.endpoint).is_some());
            let number = address.map_or(ADDR_UNSPEC, |address| table.insert(address));
            if !numbers.is_null() {
                numbers.set_item(index, number);
            }
            inserted += c_int::from(address.is_some());
        }
        Ok(inserted)
    };
    counted(insert())
}

/// Inserts the address of a text ([`straddr`]).
extern "C" fn insertsvc(
    av: Fid<FidAv>,
    node: In<c_char>,
    _service: In<c_char>,
    number: Out<u64>,
    _flags: u64,
    _context: Context,
) -> c_int {
    let insert = || {
        let av = object::state::<Av, _>(av)?;
        let address = node
            .text()
            .and_then(|text| text.parse::<Address>().ok())
            .ok_or(INVALID)?;
        MessageEndpoint::new(address.endpoint).ok_or(INVALID)?;
        let inserted = av.lock().insert(address);
        if !number.is_null() {
            number.set(inserted);
        }
        Ok(1)
    };
    counted(insert())
}

fn counted(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|Errno(number)| -number)
}

extern "C" fn remove(av: Fid<FidAv>, numbers: In<u64>, count: usize, _flags: u64) -> c_int {
    let remove = || {
        let av = object::state::<Av, _>(av)?;
        let numbers = numbers.items(count).ok_or(INVALID)?;
        let mut table = av.lock();
        numbers.iter().try_for_each(|number| table.remove(*number))
    };
    status(remove())
}

extern "C" fn lookup(av: Fid<FidAv>, number: u64, room: Out<c_void>, length: Out<usize>) -> c_int {
    let look = || {
        let address = object::state::<Av, _>(av)?.address(number)?;
        store(address, room, length)
    };
    status(look())
}

/// Stores as much of an address as there is room for, and its length.
///
/// # Errors
/// -FI_ETOOSMALL: it is longer; [`INVALID`]
pub(crate) fn store(address: Address, room: Out<c_void>, length: Out<usize>) -> Result<()> {
    let given = length.get().ok_or(INVALID)?;
    let bytes = address.to_bytes();
    let part = bytes.get(..given.min(BYTES)).unwrap_or(&bytes);
    if !room.copy_in(0, part) || !length.set(BYTES) {
        return Err(INVALID);
    }
    match given < BYTES {
        true => Err(Errno(FI_ETOOSMALL)),
        false => Ok(()),
    }
}

extern "C" fn straddr(
    _av: Fid<FidAv>,
    address: In<c_void>,
    room: Out<c_void>,
    length: Out<usize>,
) -> *const c_char {
    let address = address.bytes(BYTES).and_then(Address::from_bytes);
    let text = address.map_or_else(|| "no address of qnic".to_owned(), |it| it.to_string());
    let given = length.get().unwrap_or(0);
    if let Some(most) = given.checked_sub(1) {
        let part = text.as_bytes().get(..most).unwrap_or(text.as_bytes());
        room.copy_in(0, part);
        room.copy_in(part.len(), &[0]);
    }
    length.set(text.len() + 1);
    room.text_pointer()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: (NodeId, Port) = (NodeId(1), Port(7));

    fn address(incarnation: u32) -> Address {
        Address {
            node: NAME.0,
            port: NAME.1,
            memory: Port(0),
            endpoint: 0,
            incarnation,
            service: 0,
        }
    }

    fn numbers(table: &Table) -> [Option<u64>; 4] {
        [0, 10, 11, 12].map(|incarnation| table.number(address(incarnation).peer()))
    }

    #[test]
    fn senders_have_the_number_of_their_incarnation() {
        let mut table = Table::default();
        for (number, incarnation) in [10, 10, 11, 11, 12].into_iter().enumerate() {
            assert_eq!(table.insert(address(incarnation)), number as u64);
        }
        assert_eq!(numbers(&table), [Some(4), Some(0), Some(2), Some(4)]);
        for removed in [4, 2, 0] {
            table.remove(removed).unwrap();
        }
        assert_eq!(numbers(&table), [Some(3), Some(1), Some(3), None]);
        for removed in [3, 1] {
            table.remove(removed).unwrap();
        }
        assert_eq!(numbers(&table), [None; 4]);
        assert!(table.numbers.is_empty());
        assert_eq!(table.remove(1), Err(INVALID));
    }
}
