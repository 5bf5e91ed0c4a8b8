//! Temporary.
use qnic_nic::testing::{Net, Pair, PAGE};
use qnic_nic::Limits;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let count: u64 = args[2].parse().unwrap();
    if args[1] == "write" {
        let Pair { net, a, b } = Pair::absent(&Limits::default(), &[0, 1, 2, 3, 4, 5, 6, 7]);
        for n in 0..count {
            a.write(&b).pages(n..n + 1).run();
            net.answer_all(1, 1);
            net.settle();
        }
        assert_eq!(net.faults(1), 0);
        let _ = PAGE;
    } else {
        let Pair { net, a, b } = Pair::on(Net::new(2, 256, 8, &Limits::default()));
        for n in 0..count {
            b.receive(n).bytes(0, 8).from(&a).tag(5).run();
            a.send(1000 + n, &b).inline(b"8 bytes.").tag(5).run();
            let bytes = b.completions();
            assert_eq!(bytes.len(), 1);
            a.completions();
            net.settle();
        }
    }
}
