//! Which structures a program may fill with any bits.

#![allow(unsafe_code)]

use super::{
    AtomicAttr, AvAttr, AvSetAttr, CntrAttr, CollectiveAddr, CollectiveAttr, CqAttr, CqEntry,
    CqErrEntry, DomainAttr, EpAttr, EqAttr, EqEntry, EqErrEntry, FabricAttr, Ioc, Iov, MrAttr, Msg,
    MsgAtomic, MsgRma, MsgTagged, RmaIoc, RmaIov, RxAttr, TxAttr,
};
use crate::pointers::Plain;

macro_rules! structures {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: its fields are integers and pointers, and other such structures.
            unsafe impl Plain for $type {}
        )*
    };
}

structures!(
    AtomicAttr,
    AvAttr,
    AvSetAttr,
    CntrAttr,
    CollectiveAddr,
    CollectiveAttr,
    CqAttr,
    CqEntry,
    CqErrEntry,
    DomainAttr,
    EpAttr,
    EqAttr,
    EqEntry,
    EqErrEntry,
    FabricAttr,
    Ioc,
    Iov,
    MrAttr,
    Msg,
    MsgAtomic,
    MsgRma,
    MsgTagged,
    RmaIoc,
    RmaIov,
    RxAttr,
    TxAttr,
);

impl CqEntry {
    /// Its bytes, as programs read them.
    pub(crate) fn bytes(&self) -> [u8; size_of::<CqEntry>()] {
        // SAFETY: six fields of eight bytes: none is left out.
        unsafe { std::mem::transmute_copy(self) }
    }
}

impl EqEntry {
    /// Its bytes, as programs read them.
    pub(crate) fn bytes(&self) -> [u8; size_of::<EqEntry>()] {
        // SAFETY: three fields of eight bytes: none is left out.
        unsafe { std::mem::transmute_copy(self) }
    }
}
