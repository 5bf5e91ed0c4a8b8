//! Which frames may overtake each other where none is lost (U4).

use qnic_abi::wire::kind::{GOODBYE, HELLO, HELLO_REPLY, LEAVE, PROCESS_GONE};

use super::is_in_order;
use crate::env::Order;

/// Which frames one of a kind may overtake on a lossless path.
pub fn order_of(kind: u8) -> Order {
    match kind {
        GOODBYE | HELLO | HELLO_REPLY | LEAVE | PROCESS_GONE => Order::Between,
        kind if is_in_order(kind) => Order::Behind,
        _ => Order::Free,
    }
}
