package arch

// long are functions and files that may be larger than the limits, each with its reason. A key is "dir/file.go" or "dir.Func" or
// "dir.Type.Method". An entry that is no longer needed fails.
var long = map[string]string{}

// backgrounds are functions outside cmd that may make a context of their own ("dir.Func" or "dir.Type.Method"), each with its reason.
var backgrounds = map[string]string{}

// paths are files that may hold a text that TestWalls/portable forbids, each with its reason.
var paths = map[string]string{}
