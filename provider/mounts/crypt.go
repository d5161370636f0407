package mounts

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Names and contents of a lease's files are encrypted by the file system (fscrypt, policy version 2: AES-256-XTS and AES-256-CTS; the
// kernel's Documentation/filesystems/fscrypt.rst). The key is drawn here, given to the kernel and kept nowhere else: it outlives a crash of
// ours, not an unmount, and never a reboot. Sizes, times and the number of files stay readable.

const keyBytes = unix.FSCRYPT_MAX_KEY_SIZE

// newKey is struct fscrypt_add_key_arg with the key behind it.
type newKey struct {
	unix.FscryptAddKeyArg
	raw [keyBytes]byte
}

// encrypt gives the empty folder data, of the disk mounted at mnt, a key of its own.
func encrypt(mnt, data string) error {
	var key newKey
	key.Key_spec.Type = unix.FSCRYPT_KEY_SPEC_TYPE_IDENTIFIER // which the kernel fills in
	key.Raw_size = keyBytes
	_, _ = rand.Read(key.raw[:]) // never fails
	err := ioctl(mnt, unix.FS_IOC_ADD_ENCRYPTION_KEY, unsafe.Pointer(&key))
	clear(key.raw[:])
	if err != nil {
		return fmt.Errorf("add encryption key: %w", err)
	}
	policy := unix.FscryptPolicyV2{
		Version: unix.FSCRYPT_POLICY_V2, Contents_encryption_mode: unix.FSCRYPT_MODE_AES_256_XTS,
		Filenames_encryption_mode: unix.FSCRYPT_MODE_AES_256_CTS, Flags: unix.FSCRYPT_POLICY_FLAGS_PAD_32,
	}
	copy(policy.Master_key_identifier[:], key.Key_spec.U[:])
	if err := ioctl(data, unix.FS_IOC_SET_ENCRYPTION_POLICY, unsafe.Pointer(&policy)); err != nil {
		return fmt.Errorf("set encryption policy: %w", err)
	}
	return nil
}

// errOpen is why a key could not be forgotten.
var errOpen = errors.New("a file of the lease is still open")

// forgetKey takes the key of data out of the kernel, and everything deciphered with it out of the caches. A folder without one is fine.
func forgetKey(mnt, data string) error {
	arg := unix.FscryptGetPolicyExArg{Size: uint64(unsafe.Sizeof(unix.FscryptPolicyV2{}))}
	err := ioctl(data, unix.FS_IOC_GET_ENCRYPTION_POLICY_EX, unsafe.Pointer(&arg))
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read encryption policy: %w", err)
	}
	policy := (*unix.FscryptPolicyV2)(unsafe.Pointer(&arg.Policy))
	var gone unix.FscryptRemoveKeyArg
	gone.Key_spec.Type = unix.FSCRYPT_KEY_SPEC_TYPE_IDENTIFIER
	copy(gone.Key_spec.U[:], policy.Master_key_identifier[:])
	err = ioctl(mnt, unix.FS_IOC_REMOVE_ENCRYPTION_KEY, unsafe.Pointer(&gone))
	if errors.Is(err, unix.ENOKEY) {
		return nil // gone already
	}
	if err != nil {
		return fmt.Errorf("remove encryption key: %w", err)
	}
	if gone.Removal_status_flags != 0 {
		return fmt.Errorf("remove encryption key: %w", errOpen)
	}
	return nil
}

// ioctl makes one call on a folder.
func ioctl(dir string, request uint, arg unsafe.Pointer) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
