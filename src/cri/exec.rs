//! ExecSync whose answer is read as it comes: a command may print megabytes, and only its first bytes are wanted.
//!
//! The generated client holds an answer as a whole before it decodes it. Here the frames of the answer are scanned, what
//! is beyond the limit is dropped, and the exit code at the end is still found.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::{Code, Status, body::Body, transport::Channel};
use tower::{Service, ServiceExt};

use super::proto::ExecSyncRequest;

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It ended.
    Exited {
        /// Its exit code.
        code: i32,
        /// The first bytes of its standard output.
        stdout: Vec<u8>,
        /// The first bytes of its standard error.
        stderr: Vec<u8>,
    },
    /// The runtime ended it, because its time was over.
    TimedOut,
}

/// Runs a command; keeps the first `keep` bytes of each of its outputs.
pub(super) async fn run(
    mut channel: Channel,
    id: &str,
    command: &[String],
    seconds: i64,
    keep: usize,
) -> Result<Answer, Status> {
    let message = ExecSyncRequest { container_id: id.to_owned(), cmd: command.to_vec(), timeout: seconds };
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(length + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).map_err(|_| Status::invalid_argument("the command is too long"))?);
    message.encode(&mut frame).map_err(|error| Status::internal(error.to_string()))?;
    let request = Request::post("/runtime.v1.RuntimeService/ExecSync")
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .body(Body::new(Full::new(frame.freeze())))
        .map_err(|error| Status::internal(error.to_string()))?;
    let ready = channel.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let response = ready.call(request).await.map_err(|error| Status::from_error(error.into()))?;
    if let Some(answer) = ended(response.headers()) {
        return answer.unwrap_or_else(|| Err(Status::internal("an answer without a message")));
    }
    let mut body = response.into_body();
    let mut scan = Scan::new(keep);
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => scan.feed(data)?,
            Err(frame) => {
                if let Some(Some(failed)) = frame.trailers_ref().and_then(ended) {
                    return failed;
                }
            }
        }
    }
    scan.done()
}

/// What trailers say. None: they are no trailers. Some(None): it went well.
fn ended(headers: &HeaderMap) -> Option<Option<Result<Answer, Status>>> {
    let status = Status::from_header_map(headers)?;
    Some(match status.code() {
        Code::Ok => None,
        Code::DeadlineExceeded => Some(Ok(Answer::TimedOut)),
        _ => Some(Err(status)),
    })
}

/// Where in the answer the scan is.
#[derive(Debug)]
enum At {
    /// In the five bytes before the message.
    Prefix(usize),
    /// In the number that says which field follows.
    Tag(Number),
    /// In the length of a field.
    Length(u64, Number),
    /// In the bytes of a field.
    Data(u64, u64),
    /// In a field that is a number.
    Value(u64, Number),
}

/// A number of variable length, as far as it has been read.
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    value: u64,
    bits: u32,
}

impl Number {
    /// The number, once its last byte has been read.
    fn push(&mut self, byte: u8) -> Result<Option<u64>, Status> {
        if self.bits > 63 {
            return Err(Status::internal("the runtime's answer has a number of more than 64 bits"));
        }
        self.value |= u64::from(byte & 0x7f) << self.bits;
        self.bits += 7;
        Ok((byte & 0x80 == 0).then_some(self.value))
    }
}

/// Reads an ExecSyncResponse piece by piece.
#[derive(Debug)]
struct Scan {
    at: At,
    keep: usize,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    code: i32,
}

impl Scan {
    fn new(keep: usize) -> Self {
        Self { at: At::Prefix(0), keep, stdout: Vec::new(), stderr: Vec::new(), code: 0 }
    }

    fn feed(&mut self, mut data: Bytes) -> Result<(), Status> {
        while let Some(byte) = data.first().copied() {
            if let At::Data(field, left) = self.at {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
                let part = data.split_to(here);
                let into = match field {
                    1 => Some(&mut self.stdout),
                    2 => Some(&mut self.stderr),
                    _ => None,
                };
                if let Some(into) = into {
                    let room = self.keep.saturating_sub(into.len());
                    into.extend_from_slice(&part[..part.len().min(room)]);
                }
                self.at = match left - here as u64 {
                    0 => At::Tag(Number::default()),
                    left => At::Data(field, left),
                };
                continue;
            }
            let _ = data.split_to(1);
            self.step(byte)?;
        }
        Ok(())
    }

    fn step(&mut self, byte: u8) -> Result<(), Status> {
        let next = Number::default();
        self.at = match std::mem::replace(&mut self.at, At::Tag(next)) {
            At::Prefix(0) if byte != 0 => return Err(Status::internal("the runtime's answer is compressed")),
            At::Prefix(4) => At::Tag(next),
            At::Prefix(read) => At::Prefix(read + 1),
            At::Tag(mut number) => match number.push(byte)? {
                None => At::Tag(number),
                Some(tag) => match tag & 7 {
                    0 => At::Value(tag >> 3, next),
                    1 => At::Data(0, 8),
                    2 => At::Length(tag >> 3, next),
                    5 => At::Data(0, 4),
                    _ => return Err(Status::internal("the runtime's answer cannot be read")),
                },
            },
            At::Length(field, mut number) => match number.push(byte)? {
                None => At::Length(field, number),
                Some(0) => At::Tag(next),
                Some(length) => At::Data(field, length),
            },
            At::Value(field, mut number) => match number.push(byte)? {
                None => At::Value(field, number),
                Some(value) => {
                    if field == 3 {
                        // An int32 that is negative comes as 64 bits.
                        self.code = value as u32 as i32;
                    }
                    At::Tag(next)
                }
            },
            At::Data(..) => return Err(Status::internal("a field without bytes")),
        };
        Ok(())
    }

    fn done(self) -> Result<Answer, Status> {
        match self.at {
            At::Tag(Number { bits: 0, .. }) => {
                Ok(Answer::Exited { code: self.code, stdout: self.stdout, stderr: self.stderr })
            }
            _ => Err(Status::internal("the runtime's answer ends in the middle")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::proto::ExecSyncResponse;

    fn scanned(response: &ExecSyncResponse, piece: usize) -> Answer {
        let mut frame = vec![0];
        frame.extend(u32::try_from(response.encoded_len()).unwrap().to_be_bytes());
        frame.extend(response.encode_to_vec());
        let mut scan = Scan::new(10);
        for part in frame.chunks(piece) {
            scan.feed(Bytes::copy_from_slice(part)).unwrap();
        }
        scan.done().unwrap()
    }

    #[test]
    fn the_first_bytes_and_the_exit_code_are_found_however_the_answer_is_cut() {
        let big = ExecSyncResponse { stdout: vec![b'x'; 3000], stderr: b"oh".to_vec(), exit_code: -1 };
        for piece in [1, 2, 7, 1000, 10_000] {
            let want = Answer::Exited { code: -1, stdout: vec![b'x'; 10], stderr: b"oh".to_vec() };
            assert_eq!(scanned(&big, piece), want, "{piece}");
        }
        let none = ExecSyncResponse::default();
        assert_eq!(scanned(&none, 1), Answer::Exited { code: 0, stdout: vec![], stderr: vec![] });
    }

    #[test]
    fn bytes_that_are_no_answer_are_an_error() {
        for bad in [&[1, 0, 0, 0, 0][..], &[0, 0, 0, 0, 1, 7], &[0, 0, 0, 0, 9, 0x0a, 200]] {
            let mut scan = Scan::new(10);
            let fed = scan.feed(Bytes::copy_from_slice(bad));
            assert!(fed.and_then(|()| scan.done()).is_err(), "{bad:?}");
        }
        let mut scan = Scan::new(10);
        assert!(
            scan.feed(Bytes::from_static(&[
                0, 0, 0, 0, 20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff
            ]))
            .is_err()
        );
    }
}
