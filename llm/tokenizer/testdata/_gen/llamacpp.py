"""llama.cpp's tokenizer through its C API (vocab_only), by ctypes."""
import ctypes as C, os, glob
LIB = os.environ["LLAMA_LIB"]  # path of libllama*.so
d = os.path.dirname(LIB)
for n in ["libggml-base.so"] + [os.path.basename(p) for p in glob.glob(d + "/libggml.v*.so")]:
    C.CDLL(os.path.join(d, n), mode=C.RTLD_GLOBAL)
L = C.CDLL(LIB)
class Params(C.Structure):
    _fields_ = [("head", C.c_ubyte * 72), ("vocab_only", C.c_bool), ("rest", C.c_ubyte * 183)]
L.llama_model_default_params.restype = Params
L.llama_model_load_from_file.restype = C.c_void_p
L.llama_model_load_from_file.argtypes = [C.c_char_p, Params]
L.llama_model_get_vocab.restype = C.c_void_p
L.llama_model_get_vocab.argtypes = [C.c_void_p]
L.llama_tokenize.argtypes = [C.c_void_p, C.c_char_p, C.c_int32, C.c_void_p, C.c_int32, C.c_bool, C.c_bool]
L.llama_detokenize.argtypes = [C.c_void_p, C.c_void_p, C.c_int32, C.c_char_p, C.c_int32, C.c_bool, C.c_bool]
L.llama_token_to_piece.argtypes = [C.c_void_p, C.c_int32, C.c_char_p, C.c_int32, C.c_int32, C.c_bool]
for n in ["bos", "eos", "eot", "n_tokens"]:
    getattr(L, "llama_vocab_" + n).argtypes = [C.c_void_p]
for n in ["get_attr", "is_eog"]:
    getattr(L, "llama_vocab_" + n).argtypes = [C.c_void_p, C.c_int32]
L.llama_vocab_is_eog.restype = C.c_bool
for n in ["get_add_bos", "get_add_eos"]:
    f = getattr(L, "llama_vocab_" + n); f.argtypes = [C.c_void_p]; f.restype = C.c_bool
CB = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)
LOG = []
_cb = CB(lambda lvl, txt, ud: LOG.append(txt.decode("utf8", "replace")) if lvl >= 3 else None)
L.llama_log_set(_cb, None)
L.llama_backend_init()
class Llama:
    def __init__(self, path):
        p = L.llama_model_default_params()
        assert not p.vocab_only
        p.vocab_only = True
        del LOG[:]
        self.m = L.llama_model_load_from_file(path.encode(), p)
        if not self.m:
            raise ValueError("".join(LOG))
        self.v = L.llama_model_get_vocab(self.m)
        self.n = L.llama_vocab_n_tokens(self.v)
    def encode(self, b, add=False, special=False):
        n = len(b) + 16
        buf = (C.c_int32 * n)()
        r = L.llama_tokenize(self.v, b, len(b), buf, n, add, special)
        assert r >= 0, r
        return list(buf[:r])
    def decode(self, ids, remove=False, special=False):
        a = (C.c_int32 * len(ids))(*ids)
        buf = C.create_string_buffer(1 << 20)
        r = L.llama_detokenize(self.v, a, len(ids), buf, 1 << 20, remove, special)
        assert r >= 0
        return buf.raw[:r]
    def piece(self, i, special=False):
        buf = C.create_string_buffer(4096)
        r = L.llama_token_to_piece(self.v, i, buf, 4096, 0, special)
        assert r >= 0
        return buf.raw[:r]
    def eog(self): return [i for i in range(self.n) if L.llama_vocab_is_eog(self.v, i)]
    def info(self):
        return dict(bos=L.llama_vocab_bos(self.v), eos=L.llama_vocab_eos(self.v), eot=L.llama_vocab_eot(self.v),
            add_bos=L.llama_vocab_get_add_bos(self.v), add_eos=L.llama_vocab_get_add_eos(self.v), eog=self.eog())
