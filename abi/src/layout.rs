//! How this crate declares what has a fixed layout or number, and the list of it that
//! tests and people read.

use zerocopy::{Immutable, IntoBytes};

/// A field of a structure that two sides share.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its offset in the structure, in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub bytes: usize,
}

/// A structure that two sides share.
pub trait Layout: Sized {
    /// Its name.
    const NAME: &'static str;
    /// All its fields, in the order of their offsets.
    const FIELDS: &'static [Field];
}

/// The fields of a structure of numbers, each with its name; `N` is how many it has.
pub(crate) fn numbers<T: Layout + IntoBytes + Immutable, const N: usize>(
    value: &T,
) -> [(&'static str, u64); N] {
    core::array::from_fn(|index| {
        let Field {
            name,
            offset,
            bytes,
        } = T::FIELDS[index];
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(&value.as_bytes()[offset..offset + bytes]);
        (name, u64::from_le_bytes(word))
    })
}

/// Declares structures that two sides share: with the size of each in bytes, which is
/// asserted.
macro_rules! layouts {
    ($(
        $(#[doc = $doc:expr])*
        #[bytes($bytes:expr)]
        pub struct $name:ident {
            $($(#[doc = $field_doc:expr])* pub $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[doc = $doc])*
        #[derive(
            Debug,
            Clone,
            Copy,
            PartialEq,
            Eq,
            Default,
            zerocopy::FromBytes,
            zerocopy::IntoBytes,
            zerocopy::KnownLayout,
            zerocopy::Immutable,
        )]
        #[repr(C)]
        pub struct $name {
            $($(#[doc = $field_doc])* pub $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == $bytes);

        impl $crate::layout::Layout for $name {
            const NAME: &'static str = stringify!($name);
            const FIELDS: &'static [$crate::layout::Field] = &[$($crate::layout::Field {
                name: stringify!($field),
                offset: core::mem::offset_of!($name, $field),
                bytes: size_of::<$type>(),
            }),*];
        }
    )*};
}

/// A number that belongs to no case of an enumeration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown<N>(pub N);

/// Declares an enumeration whose cases have numbers, in their order.
macro_rules! numbered {
    (
        $(#[doc = $doc:expr])*
        pub enum $name:ident: $number:ident {
            $($(#[doc = $case_doc:expr])* $case:ident = $value:literal,)*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, zerocopy::TryFromBytes, zerocopy::Immutable,
        )]
        #[repr($number)]
        pub enum $name {
            $($(#[doc = $case_doc])* $case = $value,)*
        }

        impl $name {
            /// All, in the order of their numbers.
            pub const ALL: [$name; [$($value),*].len()] = [$($name::$case),*];
        }

        impl TryFrom<$number> for $name {
            type Error = $crate::layout::Unknown<$number>;

            fn try_from(number: $number) -> Result<Self, Self::Error> {
                zerocopy::try_transmute!(number).map_err(|_| $crate::layout::Unknown(number))
            }
        }
    };
}
