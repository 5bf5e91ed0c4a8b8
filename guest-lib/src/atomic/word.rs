//! What a remote word can hold, and how the NIC takes it.

/// What a [`RemoteWord`](super::RemoteWord) can hold: an [`Integer`], `f32` or `f64`.
pub trait Word: Copy + sealed::Bits + sealed::Value {}

/// `u32`, `u64`, `i32` or `i64`.
pub trait Integer: Word {}

pub(super) mod sealed {
    use qnic_abi::atomic::Function;

    /// An operand of the NIC.
    pub trait Bits {
        const BYTES: u64;
        const ADD: Function;
        const MIN: Function;
        const MAX: Function;
        fn widen(self) -> u64;
    }

    /// What a program gets of what a word was.
    pub trait Value {
        fn of(before: u64) -> Self;
    }

    macro_rules! words {
        ($($word:ty, $add:ident, $min:ident, $max:ident, $widen:expr, $of:expr;)*) => {
            $(impl Bits for $word {
                const BYTES: u64 = size_of::<$word>() as u64;
                const ADD: Function = Function::$add;
                const MIN: Function = Function::$min;
                const MAX: Function = Function::$max;
                fn widen(self) -> u64 {
                    $widen(self)
                }
            }

            impl Value for $word {
                fn of(before: u64) -> Self {
                    $of(before)
                }
            }

            impl super::Word for $word {})*
        };
    }

    words! {
        u32, FetchAdd, Min, Max, u64::from, |before| before as u32;
        u64, FetchAdd, Min, Max, u64::from, |before| before;
        i32, FetchAdd, MinSigned, MaxSigned, |own: i32| (own as u32).into(), |before| before as i32;
        i64, FetchAdd, MinSigned, MaxSigned, |own: i64| own as u64, |before| before as i64;
        f32, AddFloat, MinFloat, MaxFloat, |own: f32| own.to_bits().into(), |before| f32::from_bits(before as u32);
        f64, AddFloat, MinFloat, MaxFloat, f64::to_bits, f64::from_bits;
    }

    impl super::Integer for u32 {}
    impl super::Integer for u64 {}
    impl super::Integer for i32 {}
    impl super::Integer for i64 {}

    impl Value for bool {
        fn of(before: u64) -> Self {
            before == 0
        }
    }
}
