//! Who may hold a connection to the TLS server, and for how long.
//!
//! Anybody in the cluster can dial our servers, so nothing that a client does may cost memory without limit: connections
//! are counted, in all and per peer, and each request and each answer has a time by which it is through. A peer that
//! takes all it can get leaves room for the others.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Extension,
    extract::Request,
    middleware::{AddExtension, Next},
    response::Response,
};
use axum_server::{accept::Accept, tls_rustls::RustlsAcceptor};
use futures::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Sleep,
};
use tokio_rustls::server::TlsStream;
use tower::Layer;

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections in all; about 50 KiB each.
    pub connections: usize,
    /// Connections of one address. All API servers may come from one; then this is how many calls run side by side.
    pub per_peer: usize,
    /// From the TCP connection to the end of the handshake.
    pub handshake: Duration,
    /// From the first byte of a request to its answer.
    pub request: Duration,
    /// Until the client has taken an answer.
    pub answer: Duration,
    /// How long a connection may be silent before a request, be it the first one or the next.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            per_peer: 512,
            handshake: Duration::from_secs(10),
            // Longer than an API server waits for any handler, so that it is never us who give up first.
            request: Duration::from_secs(30),
            answer: Duration::from_secs(30),
            // API servers drop idle connections after 90 s; were we first, a call could be lost on a connection that is
            // just being closed. They also keep connections that they opened for a burst and have not used yet.
            idle: Duration::from_secs(100),
        }
    }
}

/// Lets connections in, as far as the limits go, and makes them TLS.
#[derive(Clone)]
pub struct Gate {
    tls: RustlsAcceptor,
    limits: Limits,
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    all: usize,
    by_peer: HashMap<IpAddr, usize>,
}

/// One connection's place. Free again when dropped.
struct Place {
    open: Arc<Mutex<Open>>,
    peer: IpAddr,
}

impl Gate {
    /// The gate of one server.
    pub fn new(tls: RustlsAcceptor, limits: Limits) -> Self {
        Self { tls: tls.handshake_timeout(limits.handshake), limits, open: Arc::default() }
    }

    fn place(&self, peer: IpAddr) -> io::Result<Place> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = open.by_peer.get(&peer).copied().unwrap_or_default();
        if open.all >= self.limits.connections || of_peer >= self.limits.per_peer {
            tracing::debug!(%peer, of_peer, all = open.all, "too many connections, one is refused");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many connections"));
        }
        open.all += 1;
        open.by_peer.insert(peer, of_peer + 1);
        Ok(Place { open: self.open.clone(), peer })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all = open.all.saturating_sub(1);
        if let Some(count) = open.by_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                open.by_peer.remove(&self.peer);
            }
        }
    }
}

impl<S: Send + 'static> Accept<TcpStream, S> for Gate {
    type Stream = Guarded<TlsStream<TcpStream>>;
    type Service = AddExtension<S, Answered>;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let place = stream.peer_addr().and_then(|peer| self.place(peer.ip().to_canonical()));
        let (tls, limits) = (self.tls.clone(), self.limits);
        Box::pin(async move {
            let place = place?;
            // Session tickets follow the handshake. The first answer must not wait until they are acknowledged, which a
            // client may put off for 40 ms.
            stream.set_nodelay(true)?;
            let (stream, service) = tls.accept(stream, service).await?;
            let answered = Answered::default();
            let stream = Guarded {
                inner: stream,
                answered: answered.clone(),
                limits,
                request_by: None,
                answer_by: None,
                _place: place,
            };
            Ok((stream, Extension(answered).layer(service)))
        })
    }
}

/// Set when the request that is being timed has its answer.
#[derive(Clone, Default)]
pub struct Answered(Arc<AtomicBool>);

/// Middleware that ends the time of a request.
pub async fn note_answer(request: Request, next: Next) -> Response {
    let answered = request.extensions().get::<Answered>().cloned();
    let response = next.run(request).await;
    if let Some(Answered(flag)) = answered {
        flag.store(true, Ordering::Relaxed);
    }
    response
}

/// A connection that ends when a request or an answer takes too long.
pub struct Guarded<T> {
    inner: T,
    answered: Answered,
    limits: Limits,
    /// None: no request is under way; hyper limits for how long.
    request_by: Option<Pin<Box<Sleep>>>,
    /// None: nothing is left to write.
    answer_by: Option<Pin<Box<Sleep>>>,
    _place: Place,
}

fn is_over(timer: &mut Option<Pin<Box<Sleep>>>, context: &mut Context<'_>) -> bool {
    timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready())
}

impl<T> Guarded<T> {
    /// `done`: whether the client has taken everything.
    fn watch_answer<V>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<V>>,
        done: bool,
    ) -> Poll<io::Result<V>> {
        match &result {
            Poll::Ready(_) if done => self.answer_by = None,
            Poll::Ready(_) => {}
            Poll::Pending => {
                let limit = self.limits.answer;
                self.answer_by.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
            }
        }
        if is_over(&mut self.answer_by, context) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take its answer")));
        }
        result
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Guarded<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.answered.0.swap(false, Ordering::Relaxed) {
            this.request_by = None;
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut this.inner).poll_read(context, buffer);
        if this.request_by.is_none() && buffer.filled().len() > before {
            this.request_by = Some(Box::pin(tokio::time::sleep(this.limits.request)));
        }
        if is_over(&mut this.request_by, context) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the request took too long")));
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Guarded<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(context, data);
        self.watch_answer(context, result, false)
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(context);
        self.watch_answer(context, result, true)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_shutdown(context);
        self.watch_answer(context, result, true)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.watch_answer(context, result, false)
    }
    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
