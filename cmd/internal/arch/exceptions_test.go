package arch

// exceptions are the tables below, as values: a fixture is held against none.
type exceptions struct{ long, backgrounds, paths map[string]string }

func ours() exceptions { return exceptions{long, backgrounds, paths} }

// long are functions and files that may be larger than the limits, each with its reason. A key is "dir/file.go" or "dir.Func" or
// "dir.Type.Method". An entry that is no longer needed fails.
var long = map[string]string{}

// backgrounds are functions outside cmd that may make a context of their own ("dir.Func" or "dir.Type.Method"), each with its reason.
var backgrounds = map[string]string{
	"ledger/books.Books.Close": "the last note of a ledger is written while its owner's context is already cancelled, and io.Closer has none",
	"p2p/libp2p.New": "libp2p ties listeners and gossip, which New binds so that a busy port is an error there, to one context for the network's " +
		"life; Run and Close end it",
}

// paths are files that may hold a text that TestWalls/portable forbids, each with its reason.
var paths = map[string]string{
	"provider/fetch/known.go": "the registries that owners pull renters' images from by default; nothing is built from there",
}
