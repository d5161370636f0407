package disk_test

import "testing"

func makePipe(testing.TB, string) bool { return false }
