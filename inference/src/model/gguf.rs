//! GGUF files: header, metadata and tensors, read from a memory map.
//!
//! Every count and length of the file is checked against the bytes that are left before anything is allocated, so a
//! damaged or hostile file ends in an error, never in a panic or a huge allocation.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::dequant::BlockFormat;
use crate::InferenceError;
use crate::kernels::compact::CompactRows;

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
/// The most dimensions that ggml has.
const MAX_DIMENSIONS: u32 = 4;

/// A value of the metadata. Integers of all widths become one kind, floats too.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataValue {
    /// Any integer; an unsigned one above `i64::MAX` is refused when the file is opened.
    Integer(i64),
    /// Any float.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// Integers of any width, such as `tokenizer.ggml.token_type`.
    Integers(Vec<i64>),
    /// Floats, such as `tokenizer.ggml.scores`.
    Floats(Vec<f64>),
    /// Truth values.
    Bools(Vec<bool>),
    /// Texts, such as `tokenizer.ggml.tokens` and `tokenizer.ggml.merges`.
    Strings(Vec<String>),
}

impl MetadataValue {
    /// The integer, if it is one.
    pub fn as_i64(&self) -> Option<i64> {
        if let Self::Integer(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    /// The float, if it is one.
    pub fn as_f64(&self) -> Option<f64> {
        if let Self::Float(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    /// The truth value, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(value) = self {
            Some(value)
        } else {
            None
        }
    }

    /// The integers, if it is an array of them.
    pub fn as_integers(&self) -> Option<&[i64]> {
        if let Self::Integers(values) = self {
            Some(values)
        } else {
            None
        }
    }

    /// The floats, if it is an array of them.
    pub fn as_floats(&self) -> Option<&[f64]> {
        if let Self::Floats(values) = self {
            Some(values)
        } else {
            None
        }
    }

    /// The texts, if it is an array of them.
    pub fn as_strings(&self) -> Option<&[String]> {
        if let Self::Strings(values) = self {
            Some(values)
        } else {
            None
        }
    }
}

/// A tensor read into float32.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufTensor {
    /// Slowest dimension first, as in PyTorch (the file has them the other way round).
    pub shape: Vec<i64>,
    /// Row-major values.
    pub values: Vec<f32>,
}

#[derive(Debug)]
struct TensorEntry {
    shape: Vec<i64>,
    format: BlockFormat,
    n_values: usize,
    /// Bytes from the start of the file.
    start: usize,
    n_bytes: usize,
}

/// An open GGUF file, versions 2 and 3.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    map: Mmap,
    metadata: BTreeMap<String, MetadataValue>,
    tensors: BTreeMap<String, TensorEntry>,
}

impl GgufFile {
    /// Opens the file and reads all but the tensors' values.
    ///
    /// # Errors
    /// An unreadable or damaged file, including one whose tensors don't all lie within it, and a tensor in a format
    /// that isn't supported.
    pub fn open(path: &Path) -> Result<Self, InferenceError> {
        let read_error = |source| InferenceError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(read_error)?;
        if file.metadata().map_err(read_error)?.len() == 0 {
            return Err(InferenceError::DamagedFile {
                path: path.to_owned(),
                reason: "it is empty".to_owned(),
            });
        }
        #[expect(
            unsafe_code,
            reason = "a memory map of a file that nobody shortens while it is loaded"
        )]
        // SAFETY: the map is read-only; a process that truncates a model's file during loading would end this one
        // with SIGBUS, which is accepted as for every program that maps models.
        let map = unsafe { Mmap::map(&file) }.map_err(read_error)?;
        let (metadata, tensors) = parse(&map).map_err(|refusal| match refusal {
            Refusal::Damaged(reason) => InferenceError::DamagedFile {
                path: path.to_owned(),
                reason,
            },
            Refusal::Unsupported(reason) => InferenceError::UnsupportedModel {
                path: path.to_owned(),
                reason,
            },
        })?;
        Ok(Self {
            path: path.to_owned(),
            map,
            metadata,
            tensors,
        })
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A value of the metadata, such as that of `general.architecture`.
    pub fn metadata(&self, key: &str) -> Option<&MetadataValue> {
        self.metadata.get(key)
    }

    /// The names of all tensors, sorted.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor's shape, slowest dimension first; `None` if the file has no such tensor.
    pub fn tensor_shape(&self, name: &str) -> Option<&[i64]> {
        self.tensors.get(name).map(|entry| entry.shape.as_slice())
    }

    /// Reads and dequantises a tensor.
    ///
    /// # Errors
    /// The file has no such tensor.
    pub fn read_tensor(&self, name: &str) -> Result<GgufTensor, InferenceError> {
        let Some(entry) = self.tensors.get(name) else {
            return Err(InferenceError::Tensor {
                path: self.path.clone(),
                tensor: name.to_owned(),
                reason: "is missing".to_owned(),
            });
        };
        let mut values = vec![0.0; entry.n_values];
        entry
            .format
            .dequantise(&self.map[entry.start..entry.start + entry.n_bytes], &mut values);
        Ok(GgufTensor {
            shape: entry.shape.clone(),
            values,
        })
    }

    /// A matrix's rows as they are stored, where that is a form that is kept.
    pub(super) fn compact_rows(&self, name: &str) -> Option<CompactRows> {
        let entry = self.tensors.get(name)?;
        let width = usize::try_from(*entry.shape.last()?).ok()?;
        entry
            .format
            .compact(&self.map[entry.start..entry.start + entry.n_bytes], width)
    }
}

enum Refusal {
    Damaged(String),
    Unsupported(String),
}

type Parsed = (BTreeMap<String, MetadataValue>, BTreeMap<String, TensorEntry>);

fn damaged<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Damaged(reason.into()))
}

fn parse(bytes: &[u8]) -> Result<Parsed, Refusal> {
    let mut reader = Reader { bytes, position: 0 };
    if reader.take(4, "magic number")? != MAGIC {
        return damaged("it doesn't begin with GGUF");
    }
    match reader.u32("version")? {
        2 | 3 => {}
        version if matches!(version.swap_bytes(), 1..=3) => {
            return Err(Refusal::Unsupported("big-endian GGUF isn't supported".to_owned()));
        }
        version => {
            return Err(Refusal::Unsupported(format!(
                "GGUF version {version} isn't supported, only 2 and 3"
            )));
        }
    }
    // A tensor takes at least 8 (name) + 4 + 8 (one dimension) + 4 + 8 bytes, an entry of metadata 8 + 4 + 1.
    let n_tensors = reader.count("number of tensors", 32)?;
    let n_metadata = reader.count("number of metadata entries", 13)?;
    let mut metadata = BTreeMap::new();
    for _ in 0..n_metadata {
        let key = reader.string("metadata key")?;
        let kind = reader.u32(&key)?;
        let value = reader.value(kind, &key)?;
        if metadata.insert(key.clone(), value).is_some() {
            return damaged(format!("metadata {key} occurs twice"));
        }
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(value) => match value.as_i64().and_then(|value| u64::try_from(value).ok()) {
            Some(value) if value.is_power_of_two() && value <= 1 << 20 => value,
            _ => return damaged("general.alignment isn't a power of two"),
        },
    };
    let mut headers = Vec::new();
    for _ in 0..n_tensors {
        headers.push(reader.tensor_header()?);
    }
    let data_start = (reader.position as u64).next_multiple_of(alignment);
    let mut tensors = BTreeMap::new();
    for header in headers {
        let name = header.name.clone();
        let entry = header.place(data_start, alignment, bytes.len())?;
        if tensors.insert(name.clone(), entry).is_some() {
            return damaged(format!("tensor {name} occurs twice"));
        }
    }
    Ok((metadata, tensors))
}

struct TensorHeader {
    name: String,
    shape: Vec<i64>,
    format: BlockFormat,
    offset: u64,
}

impl TensorHeader {
    /// Checks that the tensor's blocks lie within the file.
    fn place(self, data_start: u64, alignment: u64, file_len: usize) -> Result<TensorEntry, Refusal> {
        let name = &self.name;
        let (block_values, block_bytes) = self.format.block();
        let row = self.shape.last().copied().unwrap_or(1);
        let n_values = self
            .shape
            .iter()
            .try_fold(1_i64, |product, &size| product.checked_mul(size));
        let Some(n_values) = n_values.and_then(|n_values| usize::try_from(n_values).ok()) else {
            return damaged(format!("tensor {name} has an impossible shape {:?}", self.shape));
        };
        if row % block_values as i64 != 0 {
            return damaged(format!(
                "tensor {name} has rows of {row} values, not whole blocks of {block_values}"
            ));
        }
        if !self.offset.is_multiple_of(alignment) {
            return damaged(format!("tensor {name} isn't aligned to {alignment} bytes"));
        }
        let n_bytes = (n_values / block_values).checked_mul(block_bytes);
        let start = data_start
            .checked_add(self.offset)
            .and_then(|start| usize::try_from(start).ok());
        let (Some(n_bytes), Some(start)) = (n_bytes, start) else {
            return damaged(format!("tensor {name} has an impossible size"));
        };
        match start.checked_add(n_bytes) {
            Some(end) if end <= file_len => {}
            _ => {
                let reason = format!(
                    "tensor {name} with shape {:?} should take {n_bytes} bytes from byte {start}, but the file has only {file_len} bytes",
                    self.shape
                );
                return damaged(reason);
            }
        }
        Ok(TensorEntry {
            shape: self.shape,
            format: self.format,
            n_values,
            start,
            n_bytes,
        })
    }
}

/// A cursor that never reads past the end.
struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n_bytes: usize, what: &str) -> Result<&'a [u8], Refusal> {
        let rest = &self.bytes[self.position..];
        if n_bytes > rest.len() {
            return damaged(format!("it ends at byte {} within {what}", self.bytes.len()));
        }
        self.position += n_bytes;
        Ok(&rest[..n_bytes])
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Refusal> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: &str) -> Result<u32, Refusal> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, Refusal> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A number of things of which each takes at least `least_bytes` of what is left.
    fn count(&mut self, what: &str, least_bytes: usize) -> Result<usize, Refusal> {
        let count = self.u64(what)?;
        let room = (self.bytes.len() - self.position) / least_bytes;
        match usize::try_from(count) {
            Ok(count) if count <= room => Ok(count),
            _ => damaged(format!("the {what} is {count}, more than the file has room for")),
        }
    }

    fn string(&mut self, what: &str) -> Result<String, Refusal> {
        let n_bytes = self.count(what, 1)?;
        match std::str::from_utf8(self.take(n_bytes, what)?) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => damaged(format!("the {what} isn't UTF-8")),
        }
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<MetadataValue, Refusal> {
        Ok(match kind {
            0..=5 | 10 | 11 => MetadataValue::Integer(self.integer(kind, key)?),
            6 | 12 => MetadataValue::Float(self.float(kind, key)?),
            7 => MetadataValue::Bool(self.array::<1>(key)? != [0]),
            8 => MetadataValue::String(self.string(key)?),
            9 => {
                let kind = self.u32(key)?;
                match kind {
                    0..=5 | 10 | 11 => MetadataValue::Integers(self.repeat(key, 1, |r| r.integer(kind, key))?),
                    6 | 12 => MetadataValue::Floats(self.repeat(key, 4, |r| r.float(kind, key))?),
                    7 => MetadataValue::Bools(self.repeat(key, 1, |r| Ok(r.array::<1>(key)? != [0]))?),
                    8 => MetadataValue::Strings(self.repeat(key, 8, |r| r.string(key))?),
                    other => return damaged(format!("metadata {key} is an array of unknown type {other}")),
                }
            }
            other => return damaged(format!("metadata {key} has unknown type {other}")),
        })
    }

    fn repeat<T>(
        &mut self,
        key: &str,
        least_bytes: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, Refusal>,
    ) -> Result<Vec<T>, Refusal> {
        let n = self.count(key, least_bytes)?;
        (0..n).map(|_| read(self)).collect()
    }

    fn integer(&mut self, kind: u32, key: &str) -> Result<i64, Refusal> {
        Ok(match kind {
            0 => i64::from(u8::from_le_bytes(self.array(key)?)),
            1 => i64::from(i8::from_le_bytes(self.array(key)?)),
            2 => i64::from(u16::from_le_bytes(self.array(key)?)),
            3 => i64::from(i16::from_le_bytes(self.array(key)?)),
            4 => i64::from(self.u32(key)?),
            5 => i64::from(i32::from_le_bytes(self.array(key)?)),
            10 => match i64::try_from(self.u64(key)?) {
                Ok(value) => value,
                Err(_) => return damaged(format!("metadata {key} is too large")),
            },
            _ => i64::from_le_bytes(self.array(key)?),
        })
    }

    fn float(&mut self, kind: u32, key: &str) -> Result<f64, Refusal> {
        Ok(match kind {
            6 => f64::from(f32::from_le_bytes(self.array(key)?)),
            _ => f64::from_le_bytes(self.array(key)?),
        })
    }

    fn tensor_header(&mut self) -> Result<TensorHeader, Refusal> {
        let name = self.string("tensor name")?;
        let n_dimensions = self.u32(&name)?;
        if n_dimensions > MAX_DIMENSIONS {
            return damaged(format!(
                "tensor {name} has {n_dimensions} dimensions, at most {MAX_DIMENSIONS} exist"
            ));
        }
        let mut shape = Vec::new();
        for _ in 0..n_dimensions {
            match i64::try_from(self.u64(&name)?) {
                Ok(size) if size > 0 => shape.push(size),
                _ => return damaged(format!("tensor {name} has an impossible dimension")),
            }
        }
        shape.reverse();
        let number = self.u32(&name)?;
        let Some(format) = BlockFormat::from_ggml(number) else {
            return Err(Refusal::Unsupported(format!(
                "tensor {name} has ggml type {number}, supported are F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K and Q6_K"
            )));
        };
        let offset = self.u64(&name)?;
        Ok(TensorHeader {
            name,
            shape,
            format,
            offset,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_few_bits_have_the_values_of_the_dense_ones() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/gguf/blocks.gguf");
        let file = GgufFile::open(&path).unwrap();
        let mut n_kept = 0;
        for name in file.tensor_names() {
            if let Some(compact) = file.compact_rows(name) {
                assert_eq!(compact.to_floats(), file.read_tensor(name).unwrap().values, "{name}");
                n_kept += 1;
            }
        }
        assert_eq!(n_kept, 4, "Q4_0, Q4_1, Q8_0 and BF16");
    }
}
