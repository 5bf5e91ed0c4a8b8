//! Which frames may overtake each other where none is lost (U4).

use qnic_abi::verbs::frames::kind::{VERBS_DATAGRAM, VERBS_UNRELIABLE};
use qnic_abi::wire::kind::{GOODBYE, HELLO, HELLO_REPLY, LEAVE, PROCESS_GONE};

use super::is_in_order;
use crate::env::Order;

/// Which frames one of a kind may overtake on a lossless path.
pub fn order_of(kind: u8) -> Order {
    match kind {
        GOODBYE | HELLO | HELLO_REPLY | LEAVE | PROCESS_GONE => Order::Between,
        // Nothing puts them in order again: a short last piece in front of the others would end its message.
        VERBS_DATAGRAM | VERBS_UNRELIABLE => Order::Behind,
        kind if is_in_order(kind) => Order::Behind,
        _ => Order::Free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::wire::kind::ACK;

    #[test]
    fn pieces_that_nothing_puts_in_order_overtake_none() {
        for kind in [VERBS_DATAGRAM, VERBS_UNRELIABLE] {
            assert_eq!(order_of(kind), Order::Behind);
        }
        assert_eq!(order_of(ACK), Order::Free);
    }
}
