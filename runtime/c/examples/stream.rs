// Feed a text to a stream, and continue it: the C interface from Rust, without further crates.
//
//     rustc -L BUILD -l xlruntime examples/stream.rs -C link-arg=-Wl,-rpath,BUILD
//     ./stream BUNDLE "The old man walked down to "
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_void};
use std::{env, process, ptr};

#[repr(C)]
struct Scores {
    count: usize,
    index: *const i64,
    tokens: *const i64,
    log_probs: *const f32,
    context: *const i64,
    // More fields follow in the header. Rust only reads the struct through a pointer, so they may be left out here.
}

#[repr(C)]
struct Sampling {
    size: usize,
    temperature: f64,
    top_k: i64,
    top_p: f64,
    seed: u64,
    has_seed: c_int,
}

type TakeToken = extern "C" fn(*mut c_void, i64) -> c_int;

extern "C" {
    fn xlr_error_text() -> *const c_char;
    fn xlr_load(folder: *const c_char, options: *const c_void, model: *mut *mut c_void) -> c_int;
    fn xlr_model_close(model: *mut c_void);
    fn xlr_decode(model: *const c_void, ids: *const i64, count: usize, text: *mut *mut c_char, size: *mut usize) -> c_int;
    fn xlr_free(buffer: *mut c_void);
    fn xlr_stream_open(model: *mut c_void, settings: *const c_void, capacity: i64, stream: *mut *mut c_void) -> c_int;
    fn xlr_stream_close(stream: *mut c_void);
    fn xlr_stream_feed_text(stream: *mut c_void, text: *const c_char, size: usize, scores: *mut *const Scores) -> c_int;
    fn xlr_stream_flush(stream: *mut c_void, scores: *mut *const Scores) -> c_int;
    fn xlr_stream_generate(stream: *mut c_void, prompt: *const i64, count: usize, max_tokens: usize, sampling: *const Sampling,
                           take: TakeToken, user: *mut c_void) -> c_int;
}

fn checked(status: c_int) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    // The text belongs to the library, and stays valid until this thread's next failure.
    Err(unsafe { CStr::from_ptr(xlr_error_text()) }.to_string_lossy().into_owned())
}

struct Model(*mut c_void);

impl Model {
    fn load(folder: &str) -> Result<Model, String> {
        let folder = CString::new(folder).map_err(|error| error.to_string())?;
        let mut model = ptr::null_mut();
        checked(unsafe { xlr_load(folder.as_ptr(), ptr::null(), &mut model) })?;
        Ok(Model(model))
    }

    fn stream(&self) -> Result<Stream, String> {
        let mut stream = ptr::null_mut();
        checked(unsafe { xlr_stream_open(self.0, ptr::null(), 0, &mut stream) })?;
        Ok(Stream(stream))
    }

    fn decode(&self, ids: &[i64]) -> Result<String, String> {
        let (mut text, mut size) = (ptr::null_mut(), 0);
        checked(unsafe { xlr_decode(self.0, ids.as_ptr(), ids.len(), &mut text, &mut size) })?;
        let bytes = unsafe { std::slice::from_raw_parts(text as *const u8, size) };
        let copied = String::from_utf8_lossy(bytes).into_owned();
        unsafe { xlr_free(text as *mut c_void) };
        Ok(copied)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { xlr_model_close(self.0) }
    }
}

fn log_probs(scores: *const Scores) -> Vec<f32> {
    let found = unsafe { &*scores };
    if found.count == 0 {
        return Vec::new();
    }
    unsafe { std::slice::from_raw_parts(found.log_probs, found.count) }.to_vec()
}

// A stream keeps what it needs of its model, so it has no lifetime. A raw pointer makes it neither Send nor Sync.
struct Stream(*mut c_void);

impl Stream {
    fn feed(&mut self, text: &str) -> Result<Vec<f32>, String> {
        let mut scores: *const Scores = ptr::null();
        checked(unsafe { xlr_stream_feed_text(self.0, text.as_ptr() as *const c_char, text.len(), &mut scores) })?;
        Ok(log_probs(scores))
    }

    // End the text: the stream holds what may belong to a longer token.
    fn flush(&mut self) -> Result<Vec<f32>, String> {
        let mut scores: *const Scores = ptr::null();
        checked(unsafe { xlr_stream_flush(self.0, &mut scores) })?;
        Ok(log_probs(scores))
    }

    fn generate(&mut self, max_tokens: usize, seed: u64) -> Result<Vec<i64>, String> {
        extern "C" fn take(user: *mut c_void, token: i64) -> c_int {
            unsafe { &mut *(user as *mut Vec<i64>) }.push(token);
            0
        }
        let mut tokens: Vec<i64> = Vec::new();
        let rule = Sampling {
            size: std::mem::size_of::<Sampling>(),
            temperature: 0.8,
            top_k: 0,
            top_p: 1.0,
            seed,
            has_seed: 1,
        };
        let user = &mut tokens as *mut Vec<i64> as *mut c_void;
        checked(unsafe { xlr_stream_generate(self.0, ptr::null(), 0, max_tokens, &rule, take, user) })?;
        Ok(tokens)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        unsafe { xlr_stream_close(self.0) }
    }
}

fn run(bundle: &str, text: &str) -> Result<(), String> {
    let model = Model::load(bundle)?;
    let mut stream = model.stream()?;
    let mut log_probs = stream.feed(text)?;
    log_probs.extend(stream.flush()?);
    let bits: f64 = log_probs.iter().map(|&log_prob| -f64::from(log_prob) / std::f64::consts::LN_2).sum();
    println!("{} tokens, {:.4} bits", log_probs.len(), bits);
    println!("{}{}", text, model.decode(&stream.generate(40, 1)?)?);
    Ok(())
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if arguments.len() != 3 {
        eprintln!("usage: stream BUNDLE TEXT");
        process::exit(1);
    }
    if let Err(message) = run(&arguments[1], &arguments[2]) {
        eprintln!("stream: {}", message);
        process::exit(1);
    }
}
